"""Objects that warps wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Group


class Waitable(Protocol):
    """An object whose change of state can resume a suspended warp.

    Code that changes it calls ``wake_all``. A woken group executes its blocking instruction again and may wait again.

    It may have a method ``suspicion() -> int`` for the report of a deadlock: 0 for a state that cannot be right, 1 if
    some arrivals are there and others are missing, 2 if all are missing; the default is 3 (see ``deadlock``).
    """

    waiters: list[Group]

    def waiting_for(self) -> str:
        """Describe the state, for the report of a deadlock."""


def wake_all(waitable: Waitable) -> None:
    """Wake all groups that wait for an object."""
    waiters, waitable.waiters = waitable.waiters, []
    for group in waiters:
        group.wake()
