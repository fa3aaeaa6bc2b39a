"""Threads that do tasks: each once, after those it needs, what is waited for first, and an end that is an end."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import run
from pytest_nvfp4.plugin import tasks as tasks_module
from pytest_nvfp4.plugin.tasks import Task, Workers, default_workers
from tests.waiting import LONGEST_S, until

from .gates import Gate, noting


def test_the_order_is_that_of_the_list() -> None:
    order: list[str] = []
    listed = [noting(order, name) for name in "abc"]
    workers = Workers(listed, threads=1)
    workers.start()
    assert listed[-1].over.wait(LONGEST_S)
    workers.stop()
    assert order == ["a", "b", "c"]


def test_what_is_waited_for_comes_first_and_after_what_it_needs() -> None:
    order: list[str] = []
    first = Gate("first", order)
    needed = noting(order, "needed")
    other, wanted = noting(order, "other"), noting(order, "wanted", needed)
    workers = Workers([first.task, other, needed, wanted], threads=1)
    workers.start()
    assert first.began.wait(LONGEST_S)
    waiting = threading.Thread(target=workers.wait, args=(wanted,))
    waiting.start()
    assert until(lambda: workers._waiting[0] is needed)
    first.open()
    waiting.join(LONGEST_S)
    assert other.over.wait(LONGEST_S)
    workers.stop()
    assert order == ["first", "needed", "wanted", "other"]


def test_few_tasks_occupy_the_cores_and_the_others_pass_them() -> None:
    order: list[str] = []
    trace = Gate("trace", order)
    second, remote = noting(order, "second trace"), noting(order, "remote simulation")
    remote.local = False
    workers = Workers([trace.task, second, remote], threads=3, local=1)
    workers.start()
    assert trace.began.wait(LONGEST_S)
    assert remote.over.wait(LONGEST_S)
    assert not second.over.is_set()
    trace.open()
    workers.wait(second)
    workers.stop()
    assert order == ["trace", "remote simulation", "second trace"]


def test_a_task_waits_for_what_it_needs_and_others_pass_it() -> None:
    order: list[str] = []
    trace = Gate("trace", order)
    simulation, other = noting(order, "simulation", trace.task), noting(order, "other")
    workers = Workers([trace.task, simulation, other], threads=2)
    workers.start()
    assert trace.began.wait(LONGEST_S)
    assert other.over.wait(LONGEST_S)
    assert not simulation.over.is_set()
    trace.open()
    workers.wait(simulation)
    workers.stop()
    assert order == ["trace", "other", "simulation"]


@pytest.mark.parametrize("error", [ValueError("no"), pytest.skip.Exception("not here"), SystemExit(3)], ids=repr)
def test_what_a_task_raises_ends_that_task_alone(error: BaseException) -> None:
    order: list[str] = []

    def fail() -> None:
        raise error

    bad = Task("bad", fail)
    then = noting(order, "then", bad)
    workers = Workers([bad, then], threads=1)
    workers.start()
    workers.wait(then)
    workers.stop()
    assert order == ["then"]


def test_an_end_begins_nothing_more_and_ends_processes(tmp_path: Path) -> None:
    order: list[str] = []
    note = tmp_path / "note"
    source = f"open({str(note)!r}, 'w').close()\nimport time\ntime.sleep(600)"

    def hang() -> None:
        run([sys.executable, "-c", source], cwd=tmp_path, deadline_s=600)
        order.append("came to its end")

    hanging = Task("hanging", hang)
    never = noting(order, "never")
    workers = Workers([hanging, never], threads=1)
    workers.start()
    assert until(note.exists)
    assert not hanging.over.is_set()
    workers.stop()
    assert hanging.over.is_set()
    assert never.over.is_set()
    workers.wait(never)
    assert order == []


def test_as_many_as_cores_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "cores", lambda: 6)
    for gib, fits in ((64, 6), (9, 2), (3, 1)):
        monkeypatch.setattr(tasks_module, "_free_bytes", lambda gib=gib: gib << 30)
        assert default_workers() == fits
    monkeypatch.undo()
    assert 1 <= default_workers() <= 8
