"""Live times that a worker reports, for those who watch. They are claims, and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.loop.schemas import ProgressStatus, WorkerProgress
from pytest_nvfp4.loop.state import read_model, write_model
from pytest_nvfp4.text import clip

PROGRESS_VARIABLE = "NVFP4_LOOP_PROGRESS"
"""Environment variable of a worker that names the file of its progress."""
_MOST_ERRORS = 20
_MOST_CHARACTERS = 2000
_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One report of a worker; None leaves what an earlier report said.

    Attributes:
        time_us: A time in us, or a value of another metric; lower is better.
        status: What the worker does.
        note: A line for people.
        artifact: File that the time is from.
        errors: Errors since the last report.
        metric_name: Name of the metric.
        iteration: Iteration.
        source: Who reports.
    """

    time_us: float | None = None
    status: ProgressStatus | None = None
    note: str | None = None
    artifact: str | None = None
    errors: tuple[str, ...] = ()
    metric_name: str | None = None
    iteration: int | None = None
    source: str | None = None


def report(path: Path, update: Update, *, now: str) -> WorkerProgress:
    """Add a report to a file, and return what it says now. Calls side by side lose nothing.

    Args:
        path: The file; its folder is made.
        update: The report.
        now: Time of the report (UTC, ISO 8601).

    Raises:
        OSError: The file cannot be written, or another process holds its lock for 30 seconds.
        ValueError: A value is out of its range (pydantic.ValidationError).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock"), timeout=_WAIT_S):
        try:
            old = read_model(path, WorkerProgress) or WorkerProgress()
        except DoorError as error:
            old = WorkerProgress(errors=(clip(f"earlier reports are lost: {error}", _MOST_CHARACTERS),))
        new = merged(old, update, now=now)
        write_model(path, new)
    return new


def merged(old: WorkerProgress, update: Update, *, now: str) -> WorkerProgress:
    """Return what is known after a report.

    Best and last time are those of one metric: a report of another one begins anew. Raises pydantic.ValidationError.
    """
    values = old.model_dump()
    if update.metric_name not in (None, old.metric_name):
        values |= dict.fromkeys(("best_time_us", "last_time_us", "best_artifact", "last_artifact"))
    if update.time_us is not None:
        values |= {"last_time_us": update.time_us, "last_artifact": update.artifact}
        if values["best_time_us"] is None or update.time_us < values["best_time_us"]:
            values |= {"best_time_us": update.time_us, "best_artifact": update.artifact}
    elif update.artifact is not None:
        values["last_artifact"] = update.artifact
    said = {key: getattr(update, key) for key in ("status", "metric_name", "iteration", "source")}
    values |= {key: value for key, value in said.items() if value is not None}
    if update.note is not None:
        values["note"] = clip(update.note, _MOST_CHARACTERS)
    errors = [*old.errors, *(clip(error, _MOST_CHARACTERS) for error in update.errors)]
    values |= {"errors": tuple(errors[-_MOST_ERRORS:]), "updates": old.updates + 1, "updated_at": now}
    return WorkerProgress.model_validate(values)
