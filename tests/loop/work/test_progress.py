"""Reports of a worker: the best and the last time are kept, errors are bounded, and no report is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_nvfp4.loop.schemas import WorkerProgress
from pytest_nvfp4.loop.work.progress import Update, merged, report

NOW = "2026-11-23T07:00:00+00:00"


def after(*updates: Update) -> WorkerProgress:
    progress = WorkerProgress()
    for update in updates:
        progress = merged(progress, update, now=NOW)
    return progress


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_the_best_and_the_last_time_are_kept(times: list[float]) -> None:
    progress = after(*(Update(time_us=time, artifact=str(at)) for at, time in enumerate(times)))
    assert progress.best_time_us == min(times)
    assert progress.last_time_us == times[-1]
    assert progress.best_artifact == str(times.index(min(times)))
    assert progress.last_artifact == str(len(times) - 1)
    assert progress.updates == len(times)


def test_what_is_not_said_stays() -> None:
    progress = after(
        Update(time_us=3.0, status="running", note="one", iteration=4, source="me"), Update(status="blocked")
    )
    assert progress.status == "blocked"
    assert (progress.note, progress.iteration, progress.source, progress.best_time_us) == ("one", 4, "me", 3.0)
    assert progress.updated_at == NOW


def test_another_metric_begins_anew() -> None:
    progress = after(Update(time_us=3.0, artifact="a"), Update(metric_name="p50_us", time_us=9.0))
    assert (progress.metric_name, progress.best_time_us, progress.best_artifact) == ("p50_us", 9.0, None)
    assert after(Update(time_us=3.0), Update(metric_name="gmean_us", time_us=9.0)).best_time_us == 3.0


def test_the_last_errors_are_kept() -> None:
    progress = after(*(Update(errors=(f"{at}a", f"{at}b")) for at in range(15)))
    assert progress.errors == tuple(f"{at}{letter}" for at in range(5, 15) for letter in "ab")


def test_long_texts_are_cut() -> None:
    progress = after(Update(note="x" * 100_000, errors=("y" * 100_000,)))
    assert len(progress.note) < 2100
    assert len(progress.errors[0]) < 2100


@pytest.mark.parametrize("time", [-1.0, float("inf"), float("nan"), 1e18])
def test_what_is_no_time_is_refused(time: float, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    report(path, Update(time_us=5.0), now=NOW)
    with pytest.raises(ValidationError):
        report(path, Update(time_us=time), now=NOW)
    assert json.loads(path.read_text())["updates"] == 1


def test_reports_side_by_side_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "outbox" / "p.json"
    start = threading.Barrier(8)

    def some(worker: int) -> None:
        start.wait()
        for at in range(10):
            report(path, Update(time_us=100.0 + 10 * worker + at, errors=(f"{worker}/{at}",)), now=NOW)

    threads = [threading.Thread(target=some, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress = WorkerProgress.model_validate_json(path.read_text())
    assert progress.updates == 80
    assert progress.best_time_us == 100.0


def test_a_damaged_file_is_replaced_and_said(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{")
    progress = report(path, Update(time_us=5.0), now=NOW)
    assert progress.best_time_us == 5.0
    assert "earlier reports are lost" in progress.errors[0]
