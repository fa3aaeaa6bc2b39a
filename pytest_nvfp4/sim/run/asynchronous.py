"""Schedules: when the work beside the warps (TMA, tcgen05, bulk copies) happens, and what else a device may choose.

The eager schedule does work when it is issued. A lazy schedule lets it lie in queues, in order within a queue, and does
it only when nothing else can go on. A random one draws everything from a seed: when work completes, which warp runs and
for how long, the order of clusters and how many run at once, the elected lane, where TMEM is allocated. All are legal
orders of the same program, and the same seed gives the same one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["Asynchronous", "Eager", "Late", "Lazy", "Random", "schedule"]

Action = Callable[[], None]


class Asynchronous:
    """The interface: units submit, the scheduler asks for one more step when it is stuck.

    Attributes:
        patient: False if a wait that may give up (``mbarrier.try_wait``) does so at once the first time that it does
            not hold, which is legal however long its time limit.
    """

    patient = True
    shuffles = False
    """Whether the scheduler asks what to do next; else warps run one after the other."""
    elected_lane: int | None = None
    """The lane that ``elect.sync`` elects where it may choose."""

    def between_turns(self) -> None:
        """Do what should happen before the next warp runs."""

    def turn(self, ready: Sequence[Warp]) -> int:  # noqa: ARG002
        """Which of the warps that can run is next."""
        return 0

    def pick(self, count: int) -> int:  # noqa: ARG002
        """Which of ``count`` possibilities a device would take, where it may take any."""
        return 0

    def blocks(self, most: int, warp: Warp) -> int:  # noqa: ARG002
        """How many blocks of code a warp runs before it is another's turn."""
        return most

    def clusters(self, numbers: Sequence[int]) -> Sequence[int]:
        """The order in which clusters start."""
        return numbers

    def together(self) -> int:
        """How many clusters start at once."""
        return 1

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


class Late(Eager):
    """Everything happens when it is issued, but some warps of each CTA run only when no other can.

    A reader that does not wait for its writer then comes after it, which shows whom it did not wait for.

    Args:
        warps: Their numbers in the CTA.
    """

    shuffles = True

    def __init__(self, warps: Iterable[int]) -> None:
        self.warps = frozenset(warps)

    def turn(self, ready: Sequence[Warp]) -> int:
        """The first that is not late, if there is one."""
        return next((place for place, warp in enumerate(ready) if warp.index not in self.warps), 0)

    def blocks(self, most: int, warp: Warp) -> int:
        """A late warp gives way at once to what it has let go on."""
        return 1 if warp.index in self.warps else most


class Random(Asynchronous):
    """Everything that a device may choose is drawn from a seed.

    Args:
        seed: Any number; the same one repeats the run.
    """

    shuffles = True

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self._queues: dict[Hashable, deque[Action]] = {}
        self._haste = self._random.choice((0.05, 0.3, 0.7))
        self._slices = self._random.choice(((1, 4), (1, 40), (1, 400), (4000,)))
        self.elected_lane = self._random.randrange(32)

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:  # noqa: ARG002
        """Put it at the end of its queue."""
        self._queues.setdefault(queue, deque()).append(action)

    def step(self) -> bool:
        """Do the first action of some queue."""
        if not self._queues:
            return False
        queues = list(self._queues)
        queue = queues[self._random.randrange(len(queues))]
        actions = self._queues[queue]
        action = actions.popleft()
        if not actions:
            del self._queues[queue]
        action()
        return True

    def between_turns(self) -> None:
        """Complete some of the work, or none."""
        while self._random.random() < self._haste and self.step():
            pass

    def turn(self, ready: Sequence[Warp]) -> int:
        """Any."""
        return self._random.randrange(len(ready))

    def pick(self, count: int) -> int:
        """Any."""
        return self._random.randrange(count)

    def blocks(self, most: int, warp: Warp) -> int:  # noqa: ARG002
        """Few or many."""
        return min(most, self._random.randint(self._slices[0], self._slices[-1]))

    def clusters(self, numbers: Sequence[int]) -> Sequence[int]:
        """Any order."""
        shuffled = list(numbers)
        self._random.shuffle(shuffled)
        return shuffled

    def together(self) -> int:
        """A few."""
        return self._random.randint(1, 4)


def schedule(name: str | int) -> Asynchronous:
    """The schedule of a name: ``eager``, ``lazy``, ``late-0-3`` (warps 0 and 3 are), or the seed of a random one.

    Raises:
        ValueError: no such name.
    """
    if name == "eager":
        return Eager()
    if name == "lazy":
        return Lazy()
    try:
        if isinstance(name, str) and name.startswith("late-"):
            return Late(int(number) for number in name.split("-")[1:])
        return Random(int(name))
    except ValueError:
        raise ValueError(f"schedule {name!r}: it must be eager, lazy, late-WARP or a seed (a whole number)") from None
