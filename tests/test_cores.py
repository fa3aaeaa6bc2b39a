"""How many cores are used, with and without the system's word on it."""

from __future__ import annotations

import os

import pytest

from pytest_nvfp4.cores import cores


def test_those_this_process_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 5, 7}, raising=False)
    assert cores() == 3


@pytest.mark.parametrize(("known", "used"), [(6, 6), (None, 1)])
def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch, known: int | None, used: int) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: known)
    assert cores() == used
