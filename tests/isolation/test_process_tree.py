"""The descendants of a process are found and killed wherever they went."""

from __future__ import annotations

import sys

import pytest

from tests.isolation.hiding import left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")


def test_a_process_without_group_and_environment_is_found_as_a_descendant() -> None:
    assert left("adopts") == [False, False]


def test_without_a_subreaper_it_is_lost() -> None:
    assert left("does not") == [False, True]
