"""Two profiles, kernel by kernel. Only metrics that both have are compared; the others are said to be unknown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_nvfp4.profile.metrics import METRICS, KnownMetric
from pytest_nvfp4.profile.result import Metric, Profile, ProfiledLaunch

_NUMBERED: Final = re.compile(r"0x[0-9a-f]{6,}|(?<=_)\d{6,}(?=_|$)")
"""Parts of names that differ between two compiles of one kernel: addresses, and numbers that the DSL appends."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one kernel in both profiles."""

    known: KnownMetric
    old: Metric
    new: Metric

    @property
    def relative(self) -> float | None:
        """New over old minus 1; None where either is unknown, or the old one is 0."""
        if self.old.value is None or self.new.value is None or self.old.value == 0:
            return None
        return self.new.value / self.old.value - 1


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel that both profiles have, with the numbers of its launches; metrics are the medians of these."""

    name: str
    old_launches: int
    new_launches: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Kernels of both profiles in the order of the new one, and those of one only."""

    both: tuple[KernelChange, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    notes: tuple[str, ...]


def compare(old: Profile, new: Profile) -> Comparison:
    """Compare two profiles. Kernels are matched by their names without what differs between compiles."""
    before, after = _by_name(old.launches), _by_name(new.launches)
    if len(before) == len(after) == 1:  # the one kernel of each, however it is called now
        (name,), (first,) = after, before
        before = {name: before[first]}
    both = tuple(
        KernelChange(
            after[key][0].name, _count(before[key]), _count(after[key]), tuple(_changes(before[key], after[key]))
        )
        for key in after
        if key in before
    )
    return Comparison(
        both,
        tuple(before[key][0].name for key in before if key not in after),
        tuple(after[key][0].name for key in after if key not in before),
        tuple(_notes(old, new)),
    )


def _by_name(launches: Sequence[ProfiledLaunch]) -> dict[str, list[ProfiledLaunch]]:
    found: dict[str, list[ProfiledLaunch]] = {}
    for launch in launches:
        found.setdefault(_NUMBERED.sub("#", launch.name), []).append(launch)
    return found


def _count(launches: Sequence[ProfiledLaunch]) -> int:
    return sum(launch.instances for launch in launches)


def _changes(old: Sequence[ProfiledLaunch], new: Sequence[ProfiledLaunch]) -> Iterator[Change]:
    for known in METRICS:
        first, second = _median(known, old), _median(known, new)
        if first.value is not None or second.value is not None:
            yield Change(known, first, second)


def _median(known: KnownMetric, launches: Sequence[ProfiledLaunch]) -> Metric:
    """Return the median of a metric; unknown if any launch does not have it."""
    metrics = [launch.metric(known.name) for launch in launches]
    values = [metric.value for metric in metrics if metric.value is not None]
    if len(values) < len(metrics):
        return next(metric for metric in metrics if metric.value is None)
    return Metric.of(statistics.median(values), known.unit)


def _notes(old: Profile, new: Profile) -> Iterator[str]:
    first, second = old.device, new.device
    if first is not None and second is not None:
        if first.name != second.name:
            yield f"the GPUs differ ({first.name}, {second.name}): times do not compare"
        clocks = first.sm_mhz, second.sm_mhz
        if clocks[0] and clocks[1] and abs(clocks[1] / clocks[0] - 1) > 0.02:
            yield f"the SM clocks differ ({clocks[0]:.0f} and {clocks[1]:.0f} MHz): compare cycles, not times"
    if old.tool is not None and new.tool is not None and old.tool.tool != new.tool.tool:
        yield f"the tools differ ({old.tool.tool}, {new.tool.tool}): ncu's replay and a timeline time differently"
    asked = old.configuration, new.configuration
    if asked[0] is not None and asked[1] is not None and asked[0].sizes != asked[1].sizes:
        yield f"the problems differ ({asked[0].problem}, {asked[1].problem})"
    for name, profile in (("old", old), ("new", new)):
        if profile.verdict is not None and profile.verdict.status != "passed":
            yield f"the {name} kernel did not pass: {profile.verdict.status}"
