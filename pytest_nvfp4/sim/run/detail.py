"""What a report shows of a launch beyond its counters: them by instruction, and how its first CTA uses its memories.

``Session.detailed`` requests it. Blocks are then compiled to count what they execute, and the counters know the
instruction that runs when they grow (``lower.frames``). Nothing of it depends on a monitor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.memory.tally import Key, Tally
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS

__all__ = ["ColumnSpan", "LaunchDetail"]

_MOST_SPANS = 2_000
_MOST_RANGES = 2_000


@dataclass(slots=True)
class ColumnSpan:
    """TMEM columns that hold one thing from one use to another.

    Attributes:
        what: ``accumulator``, ``load``, ``SFA``, ``SFB``, ``SFA and SFB``, ``scale factors`` that nothing reads, or
            ``other``.
        column, count: The first column, and how many.
        first, last: Numbers of the first and last use, among all uses of columns by the CTA.
        at: The instruction of the first use.
    """

    what: str
    column: int
    count: int
    first: int
    last: int
    at: int


class LaunchDetail:
    """The detail of a launch.

    Attributes:
        by_instruction: Growth of counters by instruction and name; ``instructions`` counts executions by warps.
        ran: Executions of passages of the program, which ``settle`` adds.
        spans: Uses of TMEM columns of the first CTA. ``left_out`` is the number of those beyond a limit.
        barriers: The mbarriers of the first CTA: index, the instruction that initialised it (-1 if unknown), and
            completed phases.
        ranges: Bytes of the shared memory of the first CTA that copies write or read: what, instruction, index and
            size, with how often.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.by_instruction: Counter[tuple[int, str]] = Counter()
        self.ran: Counter[int] = Counter()
        self.spans: list[ColumnSpan] = []
        self.left_out = 0
        self.ranges: Counter[tuple[str, int, int, int]] = Counter()
        self.barriers: list[tuple[int, int, int]] = []

    def begin(self, cta: Cta) -> None:
        """Begin a CTA, before it runs."""
        cta.units[Tally] = _DetailedTally(cta, self)
        if cta.linear == 0:
            cta.units[ColumnUse] = _DetailedColumns(cta, self)

    def grew(self, name: str, by: int) -> None:
        """Count the growth of a counter at the running instruction, if one runs."""
        if by and (place := self._program.frames.place_now()) is not None:
            self.by_instruction[place[0], name] += by

    def copied(self, what: str, cta: Cta, at: int, index: int, size: int) -> None:
        """Record bytes of shared memory that a copy writes (``load``) or reads (``store``)."""
        key = (what, at, index, size)
        if cta.linear == 0 and (key in self.ranges or len(self.ranges) < _MOST_RANGES):
            self.ranges[key] += 1

    def settle(self) -> Counter[tuple[int, str]]:
        """Return ``by_instruction``, with what passages have executed."""
        for number, times in self.ran.items():
            for at in self._program.passages[number].instructions:
                self.by_instruction[at, "instructions"] += times
        self.ran.clear()
        return self.by_instruction


class DetailedCounter(Counter[str]):
    """Counters that tell a detail of their growth."""

    def __init__(self, detail: LaunchDetail) -> None:
        super().__init__()
        self._detail = detail

    def __setitem__(self, name: str, value: int) -> None:
        self._detail.grew(name, value - self.get(name, 0))
        super().__setitem__(name, value)


class _DetailedTally(Tally):
    """A tally that also counts by instruction."""

    def __init__(self, cta: Cta, detail: LaunchDetail) -> None:
        super().__init__(cta)
        self._detail = detail
        self._counted: dict[Key, tuple[tuple[str, int], ...]] = {}

    __hash__ = Tally.__hash__

    def __setitem__(self, key: Key, value: int) -> None:
        by = value - self.get(key, 0)
        super().__setitem__(key, value)
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = tuple(self.counters_of(key))
        for name, each in counted:
            self._detail.grew(name, by * each)


class _DetailedColumns(ColumnUse):
    """The use of columns, with its course."""

    def __init__(self, cta: Cta, detail: LaunchDetail) -> None:
        super().__init__(cta)
        self._detail = detail
        self._now = 0
        self._spans: list[ColumnSpan | None] = [None] * COLUMNS

    def at_exit(self) -> None:
        """Record the barriers of the CTA, which has ended."""
        for index, barrier in self._cta.unit(MbarrierFile).barriers.items():
            made = -1 if barrier.made is None else barrier.made.index
            self._detail.barriers.append((index, made, barrier.phase))

    def copied(self, column: int, count: int, at: int, *, scales: bool) -> None:
        """Record a copy or store."""
        super().copied(column, count, at, scales=scales)
        what = "scale factors" if scales else "other"
        self._used(what, column, count, at, same=("SFA", "SFB", "SFA and SFB") if scales else ())

    def scaled(self, w: Warp, at: int, name: str, column: int, count: int, sf_id: int, *, same: bool) -> None:
        """Record that scale factors are read."""
        super().scaled(w, at, name, column, count, sf_id, same=same)
        self._now += 1
        for span in {id(span): span for span in self._spans[column : column + count] if span is not None}.values():
            span.last = self._now
            if span.what == "scale factors":
                span.what = name
            elif span.what in ("SFA", "SFB") and span.what != name:
                span.what = "SFA and SFB"

    def accumulated(self, w: Warp, at: int, column: int, count: int, *, adds: bool, half: int | None = None) -> None:
        """Record an MMA's accumulator."""
        super().accumulated(w, at, column, count, adds=adds, half=half)
        self._used("accumulator", column, count, at)

    def loaded(self, w: Warp, at: int, column: int, count: int) -> None:
        """Record a load."""
        super().loaded(w, at, column, count)
        self._used("load", column, count, at)

    def _used(self, what: str, column: int, count: int, at: int, *, same: tuple[str, ...] = ()) -> None:
        """Extend the span that these columns are, or begin a new one."""
        self._now += 1
        span, end = self._spans[column], column + count
        alike = span is not None and (span.column, span.count) == (column, count) and span.what in (what, *same)
        if alike and all(each is span for each in self._spans[column:end]):
            span.last = self._now  # type: ignore[union-attr]
            return
        if len(self._detail.spans) >= _MOST_SPANS:
            self._detail.left_out += 1
            return
        span = ColumnSpan(what, column, count, self._now, self._now, at)
        self._detail.spans.append(span)
        self._spans[column:end] = [span] * count
