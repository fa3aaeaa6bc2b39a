"""``races``: nothing in the kernel depends on who comes first.

The kernel runs in the simulator, and every access to shared, tensor and global memory is ordered by happens-before: two
that touch the same bytes, of which one writes, must be ordered by a barrier, an mbarrier, a group that is waited for or
a flag; what the generic proxy wrote and the async proxy reads needs a proxy fence besides. That a run gives the right
answer proves none of it. ``--nvfp4-schedules=N`` also runs it under N random schedules.
"""

from __future__ import annotations

from pytest_nvfp4.plugin.racing import KernelRaces


def races(nvfp4_races: KernelRaces) -> None:
    """No two accesses race, and every schedule that is tried gives the right answer."""
    nvfp4_races.check()
