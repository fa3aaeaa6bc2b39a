"""What a warp can wait for, and how it is woken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Group

__all__ = ["Waitable"]


class Waitable(Protocol):
    """Something whose change of state can let a warp go on.

    It may have a method ``suspicion() -> int`` for the report of a deadlock: 0 if its state cannot be right, 1 if some
    have arrived and others have not, 2 if nobody has; without one it counts as 3 (see ``deadlock``).

    Whoever changes it calls ``Warp.wake`` for each of ``waiters`` (``wake_all``). A woken warp runs its blocking
    instruction again and may well wait again.
    """

    waiters: list[Group]

    def waiting_for(self) -> str:
        """Its state in words, for the report of a deadlock."""
