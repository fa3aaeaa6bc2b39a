from __future__ import annotations

import pytest

from pytest_nvfp4.device.result import SimulatedRing
from pytest_nvfp4.device.ring_counts import name_of


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("k.py:12 `mbarrier_init(full, 1)`", "k.py:12"),
        ("k.py:12 called at :80, :95 `asm volatile(...)`", "k.py:12 called at :80, :95"),
        ("", "the mbarriers at byte 64"),
    ],
)
def test_rings_of_one_helper_are_told_by_its_calls(made: str, name: str) -> None:
    ring = SimulatedRing(made=made, waiters=(), cta=0, barriers=(64, 72), count=1, bytes=0, phases=(1, 1))
    assert name_of(ring) == name
