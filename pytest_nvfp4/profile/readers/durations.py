"""Kernels with their times, from a timeline: one entry a kernel and launch shape, the longest in total first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_nvfp4.profile.result import Extents, Metric, ProfiledLaunch

SECTION = "times of its launches"


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    """One launch of a timeline: its time in nanoseconds, and what else the timeline knows of it.

    Attributes:
        facts: Further metrics by their names in ``profile.metrics``.
    """

    name: str
    duration_ns: float
    grid: Extents | None = None
    block: Extents | None = None
    cluster: Extents | None = None
    facts: tuple[tuple[str, Metric], ...] = ()


def by_kernel(launches: Iterable[TimedLaunch]) -> tuple[ProfiledLaunch, ...]:
    """Return the kernels of a timeline; the metric ``duration`` is the median of a kernel's launches."""
    groups: dict[tuple[object, ...], list[TimedLaunch]] = {}
    for one in launches:
        groups.setdefault((one.name, one.grid, one.block, one.cluster), []).append(one)
    total = sum(one.duration_ns for several in groups.values() for one in several)
    ordered = sorted(groups.values(), key=lambda several: -sum(one.duration_ns for one in several))
    return tuple(_summary(index, several, total) for index, several in enumerate(ordered))


def _summary(index: int, several: list[TimedLaunch], total_ns: float) -> ProfiledLaunch:
    first, times = several[0], [one.duration_ns / 1e3 for one in several]
    figures = {
        "average": statistics.fmean(times),
        "median": statistics.median(times),
        "minimum": min(times),
        "maximum": max(times),
        "total": sum(times),
    }
    section = {name: Metric.of(value, "us") for name, value in figures.items()}
    section["standard deviation"] = Metric.of(statistics.stdev(times) if len(times) > 1 else None, "us")
    section["share of all kernels"] = Metric.of(100e3 * sum(times) / total_ns if total_ns else None, "%")
    return ProfiledLaunch(
        index=index,
        name=first.name[:4096],
        instances=len(several),
        grid=first.grid,
        block=first.block,
        cluster=first.cluster,
        metrics={"duration": Metric.of(figures["median"], "us"), **dict(first.facts)},
        sections={SECTION: section},
    )
