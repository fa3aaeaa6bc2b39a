"""The descendants of a process are found and killed wherever they went."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_nvfp4.isolation import process_tree
from tests.isolation.hiding import left
from tests.waiting import alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")


def test_a_process_without_group_and_environment_is_found_as_a_descendant() -> None:
    assert left("adopts") == [False, False]


def test_without_a_subreaper_it_is_lost() -> None:
    assert left("does not") == [False, True]


def test_what_appears_after_the_last_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the child of a fork that has begun when its parent is stopped."""
    first, late = (subprocess.Popen(["sleep", "600"]) for _ in range(2))

    def look(_: int) -> list[int]:
        return [one.pid for one in ((first,) if alive(first.pid) else (late,)) if alive(one.pid)]

    monkeypatch.setattr(process_tree, "descendants", look)
    try:
        process_tree.kill_descendants(os.getpid())
        assert [alive(first.pid), alive(late.pid)] == [False, False]
    finally:
        for one in (first, late):
            one.kill()
            one.wait()
