"""The manual worker: it waits for a person, and a person's unfinished work outlives a loop that is interrupted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import StoppedError, stopped_by
from pytest_nvfp4.loop.schemas import Candidate
from pytest_nvfp4.loop.work.worker_manual import ManualWorker
from tests.loop.repositories import KERNEL, opened
from tests.loop.workers import Bench

RESULT = {"iteration": 1, "kernel_path": KERNEL, "decision": "KEEP", "summary": "by hand"}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return Bench(tmp_path / "user")


def run(bench: Bench, person: Callable[[], None], *, wait_s: float = 60) -> Candidate:
    """Let a person act once the workplace is open, and return the candidate."""
    task = bench.task(timeout_s=wait_s)
    task.folder.mkdir(parents=True, exist_ok=True)

    def act() -> None:
        while not (bench.state.work(1) / "outbox").exists():
            threading.Event().wait(0.01)
        person()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        return ManualWorker(bench.places(), look_s=0.01).run(task)
    finally:
        thread.join()


def test_a_person_s_change_is_a_candidate_once_there_is_a_valid_result(bench: Bench) -> None:
    def person() -> None:
        assert (bench.state.work(1) / "prompt.txt").read_text() == "make it faster\n"
        bench.state.result(1).write_text("half")
        (bench.state.tree(1) / KERNEL).write_text("STAGES = 2\n")
        bench.state.result(1).write_text(json.dumps(RESULT))

    candidate = run(bench, person)
    assert (candidate.end, candidate.by, candidate.problems) == ("proposed", "manual", ())
    assert bench.kernel(candidate) == "STAGES = 2\n"
    assert not bench.state.work(1).exists()


def test_the_policy_binds_a_person_too(bench: Bench) -> None:
    def person() -> None:
        (bench.state.tree(1) / "conftest.py").write_text("x")
        bench.state.result(1).write_text(json.dumps(RESULT))

    assert run(bench, person).violations == ("conftest.py is changed",)


def test_nobody_comes(bench: Bench) -> None:
    candidate = run(bench, lambda: None, wait_s=0.3)
    assert candidate.end == "failed"
    assert "worker_result.json within 0 s: there is none" in candidate.problems[0]


def test_unfinished_work_outlives_an_interrupted_loop(bench: Bench) -> None:
    stop = threading.Event()

    def person() -> None:
        (bench.state.tree(1) / KERNEL).write_text("STAGES = 5\n")
        stop.set()

    task = bench.task()
    task.folder.mkdir(parents=True)
    begin = threading.Thread(target=person)
    worker = ManualWorker(bench.places(), look_s=0.01)

    def watch() -> None:
        while not (bench.state.work(1) / "outbox").exists():
            threading.Event().wait(0.01)
        begin.start()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(StoppedError), stopped_by(stop):
        worker.run(task)
    watcher.join()
    begin.join()
    opened(bench.top, manual=True).clean()
    bench.state.result(1).write_text(json.dumps(RESULT))
    candidate = worker.run(task)
    assert candidate.end == "proposed"
    assert bench.kernel(candidate) == "STAGES = 5\n"


def test_work_on_another_incumbent_is_not_gone_on_with(bench: Bench) -> None:
    place = bench.state.work(1)
    bench.state.tree(1).mkdir(parents=True)
    (place / "parent").write_text("0" * 40)
    (bench.state.tree(1) / "foreign").write_text("")
    seen: list[bool] = []

    def person() -> None:
        while not (bench.state.tree(1) / KERNEL).exists():
            threading.Event().wait(0.01)
        seen.append((bench.state.tree(1) / "foreign").exists())

    run(bench, person, wait_s=0.5)
    assert seen == [False]
