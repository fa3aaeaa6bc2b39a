"""Regions with begin and end, whatever their source: records of a GPU or the simulator, a modelled launch, IKET.

`Timeline` is their common form: its times are nanoseconds, or steps of the simulator, which are no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from pytest_nvfp4.profiler.clocks import Clocks
from pytest_nvfp4.profiler.records import KernelRecord, Kind, WarpRecord
from pytest_nvfp4.text import plural

Unit = Literal["ns", "steps"]
_MOST_PROBLEMS = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """A begin, an end or a mark of a warp, in the order of the program.

    Attributes:
        name: The region; empty for an end that closes the region begun last (``range_pop``).
    """

    kind: Kind
    name: str
    at: float
    value: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A region of a warp.

    Attributes:
        cta: Linear number in the grid.
        sm: -1 if unknown.
        depth: Number of regions of the warp that were open when it began.
        end: Equal to ``begin`` for a mark.
    """

    kernel: str
    cta: int
    warp: int
    sm: int
    name: str
    begin: float
    end: float
    depth: int
    value: int = 0
    marks: bool = False

    @property
    def time(self) -> float:
        """Its duration."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Statistics:
    """The durations of a region over all warps that entered it."""

    name: str
    count: int
    warps: int
    total: float
    mean: float
    least: float
    median: float
    p90: float
    most: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The regions of a call.

    Attributes:
        source: Where the times are from: ``measured on NVIDIA H200``, ``simulated``, ``modelled on B200`` ...
        problems: What is missing or inconsistent, for a reader.
    """

    source: str
    unit: Unit
    spans: tuple[Span, ...]
    problems: tuple[str, ...] = ()

    def statistics(self) -> list[Statistics]:
        """Return the statistics of each region, in the order of their first begin."""
        found: dict[str, list[Span]] = {}
        for span in sorted(self.spans, key=lambda span: span.begin):
            if not span.marks:
                found.setdefault(span.name, []).append(span)
        return [_statistics(name, spans) for name, spans in found.items()]

    @property
    def extent(self) -> float:
        """Time from the first begin to the last end; 0 without regions."""
        return max((span.end for span in self.spans), default=0.0) - min(
            (span.begin for span in self.spans), default=0.0
        )


def _statistics(name: str, spans: list[Span]) -> Statistics:
    times = sorted(span.time for span in spans)
    return Statistics(
        name,
        len(times),
        len({(span.kernel, span.cta, span.warp) for span in spans}),
        sum(times),
        sum(times) / len(times),
        times[0],
        median(times),
        times[min(len(times) - 1, -(-9 * len(times) // 10) - 1)],
        times[-1],
    )


@dataclass(slots=True)
class Pairing:
    """Pairs the moments of warps, and collects what does not pair."""

    unclosed: Counter[str] = field(default_factory=Counter)
    unopened: Counter[str] = field(default_factory=Counter)

    def spans(
        self, moments: Iterable[Moment], *, kernel: str, cta: int, warp: int, sm: int = -1, whole: bool = True
    ) -> Iterator[Span]:
        """Yield the regions of one warp. An end closes the region of its name that was begun last.

        Args:
            whole: Whether no event is missing; else regions that are open at the end are no mistake of the kernel.
        """
        opened: dict[int, tuple[Moment, int]] = {}  # by number of the moment; a stack of these numbers for each name
        numbers: dict[str, list[int]] = {}
        for number, moment in enumerate(moments):
            if moment.kind == Kind.MARK:
                yield Span(kernel, cta, warp, sm, moment.name, moment.at, moment.at, len(opened), moment.value, True)
            elif moment.kind == Kind.BEGIN:
                opened[number] = moment, len(opened)
                numbers.setdefault(moment.name, []).append(number)
            elif moment.name and numbers.get(moment.name):
                begun, depth = opened.pop(numbers[moment.name].pop())
                yield Span(kernel, cta, warp, sm, begun.name, begun.at, moment.at, depth, begun.value)
            elif not moment.name and opened:
                _, (begun, depth) = opened.popitem()
                numbers[begun.name].pop()
                yield Span(kernel, cta, warp, sm, begun.name, begun.at, moment.at, depth, begun.value)
            else:
                self.unopened[moment.name] += 1
        if whole:
            self.unclosed.update(moment.name for moment, _ in opened.values())

    def problems(self) -> list[str]:
        """Return what did not pair, as sentences."""
        found = [
            f"region {name!r} began {plural(count, 'time')} without an end: end it in every branch"
            for name, count in self.unclosed.items()
        ]
        found += [
            f"region {name or '(range_pop)'!r} ended {plural(count, 'time')} without a begin"
            for name, count in self.unopened.items()
        ]
        return found[:_MOST_PROBLEMS]


def timeline_of(records: Sequence[KernelRecord], *, source: str) -> Timeline:
    """Return the regions that kernels have recorded; times count from the first warp's start."""
    clocks = Clocks(records)
    pairing = Pairing()
    spans: list[Span] = []
    problems: list[str] = []
    for record in records:
        name = record.kernel
        if record.launches > 1:
            problems.append(
                f"{name}: {record.launches} launches; each overwrites the one before: call `clear` between them"
            )
        if record.not_recorded:
            problems.append(f"{name}: {plural(record.not_recorded, 'warp')} had no slice: give more slices")
        if record.damaged:
            problems.append(
                f"{name}: {plural(record.damaged, 'slice')} did not hold records: something wrote over them"
            )
        lost = sum(warp.lost for warp in record.warps)
        if lost:
            most = max(len(warp.events) + warp.lost for warp in record.warps)
            problems.append(f"{name}: {plural(lost, 'event')} found no room: give {most} events a warp")
        mixed = [warp for warp in record.warps if len({event.lane for event in warp.events}) > 1]
        if mixed:
            lanes = sorted({event.lane for event in mixed[0].events})
            problems.append(
                f"{name}: {plural(len(mixed), 'warp')} recorded elected regions in different lanes ({lanes[0]}, "
                f"{lanes[1]} ...), which overwrite each other"
            )
        for warp in record.warps:
            moments = _moments(warp, record.regions, clocks)
            spans += pairing.spans(moments, kernel=name, cta=warp.cta, warp=warp.warp, sm=warp.sm, whole=not warp.lost)
    kernels: dict[str, set[str]] = {}
    for span in spans:
        kernels.setdefault(span.name, set()).add(span.kernel)
    if shared := [name for name, several in kernels.items() if len(several) > 1]:
        names = ", ".join(map(repr, shared[:_MOST_PROBLEMS]))
        problems.append(f"several kernels have regions {names}: the figures are over all of them; name them apart")
    problems += clocks.problems
    return Timeline(source, clocks.unit, tuple(spans), (*problems, *pairing.problems()))


def _moments(warp: WarpRecord, regions: Sequence[str], clocks: Clocks) -> Iterator[Moment]:
    for event, at in zip(warp.events, clocks.times(warp), strict=True):
        yield Moment(event.kind, regions[event.region], at, event.value)
