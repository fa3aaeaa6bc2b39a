"""Schedules: when asynchronous work (TMA, tcgen05, bulk copies) completes, and other choices of a device.

The eager schedule completes work at issue. The lazy schedule queues it, in order within a queue, and runs it only when
no warp can run. The random schedule draws every choice from a seed: when work completes, which warp runs and for how
long, the order of clusters and how many start together, the elected lane, the TMEM columns allocated. Each schedule is
a legal order of the program, and a seed reproduces its run.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence

from pytest_nvfp4.sim.run.warp import Warp

Action = Callable[[], None]


class Asynchronous:
    """Interface of a schedule: units submit work, and the scheduler requests steps when no warp can run.

    Attributes:
        patient: Whether ``mbarrier.try_wait`` waits. If False, it returns False at once the first time that its phase
            is incomplete, which is legal for any time limit.
    """

    patient = True
    shuffles = False
    """Whether the scheduler calls ``between_turns``, ``turn`` and ``pick``; else warps run in queue order."""
    elected_lane: int | None = None
    """Lane that ``elect.sync`` elects if it is a member; None for the lowest."""

    def between_turns(self) -> None:
        """Complete work before the next warp runs."""

    def turn(self, ready: Sequence[Warp]) -> int:  # noqa: ARG002
        """Return the position of the next warp to run."""
        return 0

    def pick(self, count: int) -> int:  # noqa: ARG002
        """Return one of ``count`` possibilities where a device may take any."""
        return 0

    def blocks(self, most: int, warp: Warp) -> int:  # noqa: ARG002
        """Return how many basic blocks a warp runs in its turn."""
        return most

    def clusters(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the order in which clusters start."""
        return numbers

    def together(self) -> int:
        """Return how many clusters start together."""
        return 1

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:
        """Accept work. Actions of one queue run in the order of their submission."""
        raise NotImplementedError

    def step(self) -> bool:
        """Run one queued action; return False if there is none."""
        return False

    def pending(self) -> list[str]:
        """Return what the queued actions are, in order of their queues."""
        return []


class Eager(Asynchronous):
    """Schedule that runs work when it is issued."""

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:  # noqa: ARG002
        """Run the action."""
        action()


class Lazy(Asynchronous):
    """Schedule that runs work as late as possible: when no warp can run, youngest queue first."""

    def __init__(self, *, patient: bool = True) -> None:
        self.patient = patient
        self._queues: dict[Hashable, deque[tuple[Action, str]]] = {}

    def submit(self, queue: Hashable, action: Action, *, what: str = "") -> None:
        """Append the action to its queue."""
        self._queues.setdefault(queue, deque()).append((action, what))

    def pending(self) -> list[str]:
        """Return what the queued actions are."""
        return [what for actions in self._queues.values() for _, what in actions]

    def step(self) -> bool:
        """Run the first action of the next queue."""
        if not self._queues:
            return False
        queue = self._next_queue()
        actions = self._queues[queue]
        action, _ = actions.popleft()
        if not actions:
            del self._queues[queue]
        action()
        return True

    def _next_queue(self) -> Hashable:
        return next(reversed(self._queues))


class Late(Eager):
    """Schedule that runs work when it is issued, and some warps of each CTA only when no other warp can run.

    A reader that does not wait for its writer then reads after the write, which shows the writer it did not wait for.

    Args:
        warps: Warp numbers in the CTA.
    """

    shuffles = True

    def __init__(self, warps: Iterable[int]) -> None:
        self.warps = frozenset(warps)

    def turn(self, ready: Sequence[Warp]) -> int:
        """Return the position of the first warp that is not late, if there is one."""
        return next((place for place, warp in enumerate(ready) if warp.index not in self.warps), 0)

    def blocks(self, most: int, warp: Warp) -> int:
        """Return 1 for a late warp, so that a warp which it wakes runs next."""
        return 1 if warp.index in self.warps else most


class Random(Lazy):
    """Schedule that draws every choice from a seed."""

    shuffles = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._random = random.Random(seed)
        self._haste = self._random.choice((0.05, 0.3, 0.7))
        self._slices = self._random.choice(((1, 4), (1, 40), (1, 400), (4000,)))
        self.elected_lane = self._random.randrange(32)

    def _next_queue(self) -> Hashable:
        queues = list(self._queues)
        return queues[self._random.randrange(len(queues))]

    def between_turns(self) -> None:
        """Run a random number of queued actions, possibly none."""
        while self._random.random() < self._haste and self.step():
            pass

    def turn(self, ready: Sequence[Warp]) -> int:
        """Return any position."""
        return self._random.randrange(len(ready))

    def pick(self, count: int) -> int:
        """Return any possibility."""
        return self._random.randrange(count)

    def blocks(self, most: int, warp: Warp) -> int:  # noqa: ARG002
        """Return a random number of blocks."""
        return min(most, self._random.randint(self._slices[0], self._slices[-1]))

    def clusters(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return any order."""
        shuffled = list(numbers)
        self._random.shuffle(shuffled)
        return shuffled

    def together(self) -> int:
        """Return 1 to 4 clusters."""
        return self._random.randint(1, 4)


def schedule(name: str | int) -> Asynchronous:
    """Return a schedule by name: ``eager``, ``lazy``, ``late-0-3`` (late warps 0 and 3), or the seed of a random one.

    Raises:
        ValueError: the name is none of these.
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
