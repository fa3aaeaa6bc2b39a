"""Counted beside measured: the simulator's counters of a call beside a profile of the same call.

A difference in a counter that is exact in principle is a defect of the simulator, of the mapping, or of ptxas. An
unknown metric is never compared: neither as zero nor as equal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch
from pytest_nvfp4.profile.result import ABSENT, Extents, Metric, ProfiledLaunch
from pytest_nvfp4.profile.shared_counters import SHARED_COUNTERS, UNALIGNED, WHILE_COUNTING, Chip, SharedCounter

_INSTANCE = re.compile(r"([A-Z][\w.]*): (\d[\d,]*)")
Verdict = Literal["equal", "differs", "recompiled", "unknown", "proportional", "not comparable"]
"""``recompiled``: ptxas changed loads, so that the numbers differ without a defect."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One counter, counted and measured.

    Attributes:
        counter: What is compared.
        counted: The simulator's count; None if it did not count.
        measured: The hardware's; unknown with the reason.
        metrics: The metrics that were added up; those that are wanted if it is unknown.
        chip: The chip whose metrics they are.
    """

    counter: SharedCounter
    counted: int | None
    measured: Metric
    metrics: tuple[str, ...]
    chip: Chip

    @property
    def difference(self) -> float | None:
        """Measured less counted; None if either is unknown."""
        if self.counted is None or self.measured.value is None:
            return None
        return self.measured.value - self.counted

    @property
    def ratio(self) -> float | None:
        """Measured by counted; None if either is unknown, or none was counted."""
        return None if not self.counted or self.measured.value is None else self.measured.value / self.counted

    @property
    def verdict(self) -> Verdict:
        """Return what the two numbers show."""
        if self.difference is None:
            return "unknown"
        if self.counter.exactness == "not comparable":
            return "not comparable"
        if self.difference == 0:
            return "equal"
        if self.counter.exactness == "as compiled":
            return "recompiled"
        if self.counter.exactness == "scaled" and self.ratio:
            return "proportional"
        return "differs"

    @property
    def evidence(self) -> str:
        """On which device the two were compared before; empty if it was on none."""
        return self.counter.seen.get(self.chip, "")


@dataclass(frozen=True, slots=True)
class ComparedLaunch:
    """A launch of a profile beside its simulation.

    Attributes:
        measured: The launch of the profile.
        counted: Its simulation.
        because: Why the two are not compared; empty if they are.
        comparisons: The counters that either of the two has.
        number: Position of the simulation among the launches of its call.
    """

    measured: ProfiledLaunch
    counted: SimulatedLaunch
    because: str
    comparisons: tuple[Comparison, ...] = ()
    number: int = 0

    @property
    def differing(self) -> tuple[Comparison, ...]:
        """The counters that must be equal, and are not."""
        return tuple(one for one in self.comparisons if one.verdict == "differs")


def compare_call(call: SimulatedCall, launches: Sequence[ProfiledLaunch], chip: Chip) -> tuple[ComparedLaunch, ...]:
    """Compare the launches of a profile with those of a simulated call.

    The profile may hold several calls, or a part of one: launches of one kernel, in their order, stand for those of the
    call in turn. Launches of other kernels are left out.
    """
    seen = Counter[str]()
    compared = []
    for launch in launches:
        own = [number for number, one in enumerate(call.launches) if _same_kernel(launch.name, one.kernel)]
        if not own:
            continue
        place, seen[launch.name] = seen[launch.name], seen[launch.name] + 1
        number = own[place % len(own)]
        compared.append(replace(compare_launch(call.launches[number], launch, chip), number=number))
    return tuple(compared)


def compare_launch(counted: SimulatedLaunch, measured: ProfiledLaunch, chip: Chip) -> ComparedLaunch:
    """Compare one launch with its simulation. Launches of different extents are not compared."""
    for name, here, there in (
        ("grid", measured.grid, counted.grid),
        ("block", measured.block, counted.block),
        ("cluster", measured.cluster, counted.cluster),
    ):
        if here is not None and max(here, (1, 1, 1)) != there:  # (0, 0, 0) is a launch without clusters
            return ComparedLaunch(
                measured, counted, f"measured with a {name} of {_dims(here)}, simulated {_dims(there)}"
            )
    if measured.instances != 1:
        return ComparedLaunch(measured, counted, f"the figures of the report are of {measured.instances} launches")
    pairs = (_compare(counter, counted, measured, chip) for counter in SHARED_COUNTERS if chip in counter.measured)
    # What neither has does not belong to this kernel.
    return ComparedLaunch(measured, counted, "", tuple(pair for pair in pairs if pair.counted or pair.measured.value))


def _compare(counter: SharedCounter, launch: SimulatedLaunch, measured: ProfiledLaunch, chip: Chip) -> Comparison:
    metric, names = _measured(counter, measured, chip)
    return Comparison(counter, counted_by(counter, launch), metric, names, chip)


def counted_by(counter: SharedCounter, launch: SimulatedLaunch) -> int | None:
    """Return the simulator's count of a launch; None if the simulation did not count this."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    grid = {"ctas": launch.ctas, "warps": launch.ctas * -(-threads // 32)}
    total = 0
    for factor, name in counter.counted:
        requests = WHILE_COUNTING.get(name)
        if requests is not None and name not in launch.counters and launch.counters.get(requests):
            return None
        if requests == "tma.load.requests" and launch.counters.get(UNALIGNED):
            return None
        total += factor * grid.get(name, launch.counters.get(name, 0))
    return total


def _measured(counter: SharedCounter, launch: ProfiledLaunch, chip: Chip) -> tuple[Metric, tuple[str, ...]]:
    """Return the first sum whose metrics are all known, and their names; else the reason of the first unknown one."""
    first: tuple[Metric, tuple[str, ...]] | None = None
    for names in counter.measured[chip]:
        metrics = [_metric(launch, name) for name in names]
        missing = [(name, metric) for name, metric in zip(names, metrics, strict=True) if metric.value is None]
        if not missing:
            return Metric.of(sum(metric.value or 0.0 for metric in metrics), metrics[0].unit), names
        name, metric = missing[0]
        first = first or (Metric.unknown(f"{name}: {metric.because}", metric.unit), names)
    assert first is not None
    return first


def _metric(launch: ProfiledLaunch, name: str) -> Metric:
    """Return a metric, or of ``metric[KEY]`` one instance, which ncu prints as ``120 (ADD: 100; BAR: 20)``."""
    whole, bracket, key = name.partition("[")
    if not bracket:
        return launch.counters.get(name, ABSENT)
    instances = dict(_INSTANCE.findall(launch.texts.get(whole, "")))
    if not instances:
        return ABSENT
    # What is not listed was not executed.
    return Metric.of(float(instances.get(key.removesuffix("]"), "0").replace(",", "")))


def _same_kernel(shown: str, symbol: str) -> bool:
    """Return whether a tool's name of a kernel is that of a symbol; tools may add parameters, or cut a long name."""
    name = shown.partition("(")[0].strip()
    return name == symbol or (len(name) > 16 and symbol.startswith(name))


def _dims(extents: Extents) -> str:
    return "x".join(map(str, extents))


def disagreements(compared: Sequence[ComparedLaunch]) -> Iterator[str]:
    """Yield a sentence for each counter that must be equal, and is not."""
    for launch in compared:
        for one in launch.differing:
            yield (
                f"{launch.measured.name}: {one.counter.title}: {one.counted} counted, {one.measured.value:g} measured "
                f"({' + '.join(one.metrics)}): {one.counter.why}"
            )
