"""Work that goes on beside the warps: TMA, tcgen05, bulk copies.

The eager schedule does it when it is issued. A lazy schedule lets it lie in queues, in order within a queue, and does
it only when nothing else can go on; both are legal orders of the same program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

__all__ = ["Asynchronous", "Eager", "Lazy"]

Action = Callable[[], None]


class Asynchronous:
    """The interface: units submit, the scheduler asks for one more step when it is stuck.

    Attributes:
        patient: False if a wait that may give up (``mbarrier.try_wait``) does so at once the first time that it does
            not hold, which is legal however long its time limit.
    """

    patient = True

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:
        """Take on work. Actions of the same queue happen in the order of their submission."""
        raise NotImplementedError

    def step(self) -> bool:
        """Do one piece of waiting work; False if there is none."""
        return False


class Eager(Asynchronous):
    """Everything happens when it is issued."""

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:  # noqa: ARG002
        """Do it now."""
        action()


class Lazy(Asynchronous):
    """Everything happens as late as it can: when no warp can run, the youngest queue goes first."""

    def __init__(self, *, patient: bool = True) -> None:
        self.patient = patient
        self._queues: dict[Hashable, deque[Action]] = {}

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:  # noqa: ARG002
        """Put it at the end of its queue."""
        self._queues.setdefault(queue, deque()).append(action)

    def step(self) -> bool:
        """Do the first action of the youngest queue."""
        if not self._queues:
            return False
        queue = next(reversed(self._queues))
        actions = self._queues[queue]
        action = actions.popleft()
        if not actions:
            del self._queues[queue]
        action()
        return True
