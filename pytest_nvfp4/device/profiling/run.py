"""Run a job below a profiler where the device is; where one cannot run, try the next best, and name both."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pytest_nvfp4 import isolation
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.process import Profiler, run_below, run_in_worker
from pytest_nvfp4.device.profiling import commands
from pytest_nvfp4.device.profiling.commands import ToolCommand
from pytest_nvfp4.device.profiling.kernel_names import kernel_names
from pytest_nvfp4.device.profiling.reasons import unavailable_because
from pytest_nvfp4.device.profiling.record import (
    MOST_FILE_BYTES,
    ProfileRecord,
    State,
    Tool,
    ToolFile,
    ToolRun,
)
from pytest_nvfp4.device.profiling.tools import Program, found_tools, programs
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.isolation.wall.program import ended
from pytest_nvfp4.temporary import temporary_folder

_PROGRAM: Final = "pytest_nvfp4.isolation.wall.program"
_EXPORT_S: Final = 120.0
_LOG_BYTES: Final = 4 << 20
_SHOWN: Final = 3000
_LEAST_S: Final = 10.0
"""Seconds without which no further tool is tried."""
_NAN: Final = "counters are NaN"
_MOST_NAN: Final = 0.3
"""Share of NaN among the counters of a report above which an older version is tried: that of CUDA 13.3 on B200
reports many, where 2025.2 reports values (GPU MODE's kernelbot, pull request 530). A few are of units that idled."""
_NUMBER: Final = re.compile(r"-?nan(\(.*\))?|[-+]?[0-9][0-9.,]*([eE][-+]?[0-9]+)?", re.IGNORECASE)
_OLDER: Final = 2
"""Older versions of ncu that are tried then."""


@dataclass(frozen=True, slots=True)
class _Make:
    """Makes the command of an attempt.

    Attributes:
        command: Returns the command whose files go to a folder, why there is none, or None for torch's profiler.
        after_nan: Whether it is made only if the attempt before it has NaN in place of counters.
    """

    command: Callable[[Path], ToolCommand | str | None]
    after_nan: bool = False


@dataclass(frozen=True, slots=True)
class _Where:
    """How the worker is started: see ``run_in_worker``."""

    backend: str
    folder: Path
    base: Path | None
    environ: dict[str, str] | None


def run_job(
    job: Job, *, backend: str, folder: Path, base: Path | None = None, environ: dict[str, str] | None = None
) -> Result:
    """Run any job as ``run_in_worker`` does; a profile with its tool, and a probe with a look for tools."""
    if job.profiling is None or job.action not in ("probe", "profile"):
        return run_in_worker(job, backend=backend, folder=folder, base=base, environ=environ)
    if job.action == "probe":
        result = run_in_worker(job, backend=backend, folder=folder, base=base, environ=environ)
        return result.model_copy(update={"profile": ProfileRecord(tools=found_tools())})
    if backend == "sim":
        message = "the simulator has no counters of a GPU; `nvfp4 cost` and `nvfp4 model` count and model the work"
        return Result(job=job.id, status="unavailable", findings=(Finding("device", message),))
    where = _Where(backend, folder, base, environ)
    attempts: list[ToolRun] = []
    until = time.monotonic() + job.deadline_s
    result = Result(job=job.id, status="unavailable", findings=(Finding("environment", "no profiler was tried"),))
    for number, make in enumerate(_attempts(job)):
        if make.after_nan and not (attempts and _NAN in attempts[-1].because):
            continue
        left = until - time.monotonic()
        if attempts and (left < _LEAST_S or attempts[-1].state == "timeout"):
            break
        place = folder if number == 0 else _fresh(folder)
        asked = job.model_copy(update={"deadline_s": max(left, 1.0)})
        here = _Where(where.backend, place, where.base, where.environ)
        made, run, files = _attempt(asked, make, here, shared=folder)
        if made is None and attempts and attempts[-1].because == run.because:
            continue  # the same program is missing in another way of using it
        attempts.append(run)
        result = _from_folder(made, place, folder) if made is not None else result
        if run.state == "ran":
            record = result.profile or ProfileRecord()
            record = record.model_copy(update={"files": files, "sources": str(place / "source")})
            result = result.model_copy(update={"profile": record})
            break
        if result.status in ("cheated", "unsupported") or not job.profiling.fallback:
            break
    record = (result.profile or ProfileRecord()).model_copy(update={"attempts": tuple(attempts)})
    return result.model_copy(update={"profile": record})


def _from_folder(result: Result, place: Path, folder: Path) -> Result:
    """Return the result of a worker in ``place`` with the names of its files relative to ``folder``."""
    if place == folder:
        return result
    within = place.relative_to(folder)

    def moved(blob: Blob) -> Blob:
        return blob if blob.file is None else blob.model_copy(update={"file": (within / blob.file).as_posix()})

    outputs = tuple(one.model_copy(update={"data": moved(one.data)}) for one in result.outputs)
    return result.model_copy(update={"outputs": outputs})


def _attempts(job: Job) -> Iterator[_Make]:
    """Yield the tools of a mode, best first."""
    settings = job.profiling
    assert settings is not None

    def of(tool: Tool, make: Callable[[Program, Path], ToolCommand], *, older: int = 0) -> _Make:
        def command(folder: Path) -> ToolCommand | str:
            found = programs(tool)
            if isinstance(found, str):
                return found
            if older >= len(found):
                return f"there is no older {found[0].path.name} than {found[-1].version}"
            return make(found[older], folder)

        return _Make(command, after_nan=older > 0)

    torch = _Make(lambda _: None)
    kernels = kernel_names(job.kernel.files) if job.kernel is not None and job.kernel.entry is not None else ()

    def ncu(found: Program, folder: Path, *, counters: bool = True) -> ToolCommand:
        return commands.ncu(found, settings, folder, kernels=kernels, counters=counters)

    match settings.mode:
        case "ncu":
            for older in range(_OLDER + 1):
                yield of("ncu", ncu, older=older)
            yield of("ncu", partial(ncu, counters=False))
            yield torch
        case "nsys":
            yield of("nsys", commands.nsys)
            yield of("nsys", partial(commands.nsys, cuda=False))
            yield torch
        case "sanitizer":
            yield of("sanitizer", lambda found, folder: commands.sanitizer(found, settings, folder))
        case "torch":
            yield torch


def _attempt(
    job: Job, make: _Make, where: _Where, *, shared: Path
) -> tuple[Result | None, ToolRun, tuple[ToolFile, ...]]:
    """Make one attempt; return the result, None if nothing was run, what became of the tool, and its files."""
    assert job.profiling is not None
    with temporary_folder("profile") as name:
        folder = Path(name)
        command = make.command(folder)
        if isinstance(command, str):
            return None, ToolRun(tool=_tool(job), state="unavailable", because=command), ()
        if command is None:
            asked = job.model_copy(update={"profiling": job.profiling.model_copy(update={"mode": "torch"})})
            result = run_in_worker(
                asked, backend=where.backend, folder=where.folder, base=where.base, environ=where.environ
            )
            return result, _torch_run(result), ()
        below = Profiler(command.arguments, (str(command.program.folder), *_libraries(command.program)))
        result, outcome = run_below(
            job, below, backend=where.backend, folder=where.folder, base=where.base, environ=where.environ
        )
        log = _log(command, outcome)
        problem = _export(command, folder) if any(folder.glob("*-rep")) else ""
        state, because = _judged(command, result, log, folder, problem)
        run = ToolRun(
            tool=command.tool,
            version=command.program.version,
            options=command.options,
            state=state,
            because=because,
            output=log[-_SHOWN:],
        )
        files = _files(folder, shared) if state == "ran" else ()
    return result, run, files


def _tool(job: Job) -> Tool:
    assert job.profiling is not None
    return job.profiling.mode


def _torch_run(result: Result) -> ToolRun:
    version = None if result.device is None else result.device.torch
    cases = () if result.profile is None else result.profile.cases
    if result.status == "timeout":
        return ToolRun(tool="torch", version=version, state="timeout", because=_first(result))
    if result.status != "passed":
        return ToolRun(tool="torch", version=version, state="failed", because=_first(result))
    reasons = [case.unrecorded for case in cases if case.unrecorded]
    if reasons or not cases:
        because = reasons[0] if reasons else "the worker returned no record of torch's profiler"
        return ToolRun(tool="torch", version=version, state="unavailable", because=because)
    return ToolRun(tool="torch", version=version)


def _judged(command: ToolCommand, result: Result, log: str, folder: Path, problem: str) -> tuple[State, str]:
    """Return what became of a tool, and why."""
    reason = unavailable_because(log)
    if result.status == "timeout":
        return "timeout", _first(result)
    missing = [name for name in command.needed if not all_there((name,), folder)]
    # A sanitizer that came to its end has its findings, also where these have ended the kernel.
    through = result.status == "passed" or (command.last and result.status in ("error", "crashed"))
    if not missing and not problem and through and command.complete(log):
        if count := _nan(folder):
            return "unavailable", f"{count} {_NAN} with this version of {command.program.path.name}"
        return "ran", ""
    if reason is not None:
        return "unavailable", reason
    if result.status != "passed":
        return "failed", f"{_first(result)} (below {command.program.path.name})"
    if (folder / "nsys.qdstrm").is_file():
        return "unavailable", "nsys left a .qdstrm only: its importer is not installed here"
    if problem:
        return "unavailable", problem
    tail = " ".join(log.split())[-300:]
    what = f"wrote no {missing[0]}" if missing else "did not finish its report"
    return "unavailable", f"{command.program.path.name} {what}: {tail or 'it printed nothing'}"


def _nan(folder: Path) -> str:
    """Return how many counters of a report of ncu have no value although they were collected, if they are many."""
    page = folder / "ncu.raw.csv"
    if not page.is_file():
        return ""
    text = page.read_text("utf-8", "replace")
    cells = [found[0] for found in map(_NUMBER.fullmatch, re.findall(r'"([^"\n]*)"', text)) if found]
    nan = sum("nan" in cell.lower() for cell in cells)
    return f"{nan} of {len(cells)}" if nan > _MOST_NAN * len(cells) else ""


def _first(result: Result) -> str:
    return " ".join(result.reason.split())[:1000] or result.status


def all_there(names: tuple[str, ...], folder: Path) -> bool:
    """Return whether each of some files lies in a folder and is not empty."""
    return all((folder / name).is_file() and (folder / name).stat().st_size for name in names)


def _log(command: ToolCommand, outcome: Outcome) -> str:
    """Return what the tool printed; its log file, where it has one, is not mixed with the kernel's own output."""
    texts = []
    if command.log is not None and command.log.is_file():
        try:
            texts.append(read_file(command.log, source="the log", most=_LOG_BYTES).decode("utf-8", "replace"))
        except (DoorError, OSError) as error:
            texts.append(f"its log cannot be read: {error}")
    if not texts:
        texts += [outcome.stdout.text, outcome.stderr.text]
    return "\n".join(text.strip() for text in texts if text.strip())


def _libraries(found: Program) -> Iterator[str]:
    """Yield further folders of a tool's libraries: those of its installation, if it has one of its own."""
    for parent in list(found.path.resolve().parents)[:3]:
        if any(word in parent.name.lower() for word in ("nsight", "sanitizer", "cuda")):
            yield str(parent)


def _export(command: ToolCommand, folder: Path) -> str:
    """Run the exports of a report, behind a wall; return why one failed, empty if none did."""
    if not command.exports:
        return ""
    with temporary_folder("export") as scratch:
        wall = Wall(
            folder=str(scratch),
            readable=(str(command.program.folder), *_libraries(command.program)),
            writable=(str(folder),),
            file_bytes=2 * MOST_FILE_BYTES,
        )
        outcome = isolation.run(
            worker(_PROGRAM, json.dumps([arguments for arguments, _ in command.exports])),
            cwd=Path(scratch),
            deadline_s=_EXPORT_S,
            environ={},
            wall=wall,
            result_bytes=2 * MOST_FILE_BYTES,
        )
    done = list(ended(outcome.result or b""))
    name = command.program.path.name
    if len(done) < len(command.exports):
        return f"{name} {outcome.describe_end()} while it exported its report"
    for (_, target), (status, printed, errors) in zip(command.exports, done, strict=True):
        if status:
            return f"{name} cannot read its own report (status {status}): {(errors or printed).strip()[:300]}"
        if target is not None:
            (folder / target).write_text(printed, encoding="utf-8")
    return ""


def _files(folder: Path, shared: Path) -> tuple[ToolFile, ...]:
    """Copy a tool's files to a new folder that the result may name; the kernel's process has ended by now."""
    place = _fresh(shared)
    files, left = [], MOST_FILE_BYTES
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name == "ncu.log":
            continue
        try:
            data = read_file(path, source=path.name, most=left)
        except (DoorError, OSError):
            continue  # a report that is too large is left out; its exports are there
        left -= len(data)
        (place / path.name).write_bytes(data)
        blob = Blob(
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            file=(place / path.name).relative_to(shared).as_posix(),
        )
        files.append(ToolFile(name=path.name, data=blob))
    return tuple(files)


def _fresh(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="attempt-", dir=folder))
