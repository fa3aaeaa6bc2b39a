"""Regression verdicts: whether a kernel is faster, slower or the same, or the rounds do not decide it.

For each shape, and for the geometric mean of all, the ratio of medians (current over baseline) gets two bootstrap
intervals. Its threshold is the larger of the user's and the noise between sessions:

``slower``     the wide interval lies above the threshold
``faster``     the wide interval lies below minus the threshold
``same``       the narrow interval lies within the threshold on both sides
``ambiguous``  none of these: the rounds are too few, too noisy, or drift; the verdict estimates how many would suffice

**Designed error rates.** For any true ratios within the thresholds, the chance that *any* shape or the geometric mean
is called slower or faster is at most ``Policy.alpha`` (1 %): the wide interval has the level ``1 - alpha / hypotheses``
(Bonferroni, over the shapes and the geometric mean, both directions). It holds under any dependence between shapes, and
the interval that is shown is the one that decides. ``same`` is an equivalence test (two one-sided tests; the narrow
interval has the level ``1 - 2 * same_alpha``): a true change beyond the threshold is called the same with a chance of
at most ``Policy.same_alpha`` (5 %) for each shape. The rates hold for rounds that a block bootstrap describes; noise
between sessions is in the threshold, not in the intervals.

**Rounds in fours.** On an H200 short kernels take 1 us longer every second or every fourth round (see
``device.worker.clock``), and the median of two equally frequent values is either of them. If neighbouring rounds depend
on each other, and there are enough, the medians are those of the means of four, which have no such pattern.

**Rounds of two sessions** differ by more than their own spread: other addresses, another temperature, another card.
``stats.aa_noise`` measures by how much; without a measurement, ``Policy.unmeasured_noise`` is assumed and the verdict
notes it. **Interleaved rounds** of one session share all that and need no such allowance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pytest_nvfp4.bench.stats import Floats, LogRatio, RoundsError, as_rounds, block_length, generator, log_ratio

State = Literal["faster", "slower", "same", "ambiguous"]

GEOMEAN = "geomean"
"""Name of the geometric mean among the verdicts."""
_CLOCK_STEP = 0.005
"""Least change of the SM clock that matters, on the log scale."""
_TOGETHER = 4
"""Number of neighbouring rounds that are averaged."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Parameters of verdicts; the module's documentation defines the rates.

    Attributes:
        threshold: Least change that matters, as a share; a shape may have its own.
        alpha: Chance of any false ``slower`` or ``faster`` in one comparison.
        same_alpha: Chance of a false ``same`` for one shape.
        unmeasured_noise: Assumed noise between two sessions if it was not measured, as a share.
        least_rounds: Number of rounds a side below which a verdict is ambiguous.
        tail_draws: Bootstrap draws beyond each end of the wide interval; more draws make its ends more stable.
        seed: Seed of the bootstrap: the same rounds give the same verdict.
    """

    threshold: float = 0.005
    alpha: float = 0.01
    same_alpha: float = 0.05
    unmeasured_noise: float = 0.01
    least_rounds: int = 20
    tail_draws: int = 20
    seed: int = 20251

    def __post_init__(self) -> None:
        for name in ("threshold", "unmeasured_noise"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be a share of at least 0 and below 1")
        for name in ("alpha", "same_alpha"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} = {getattr(self, name)!r} must lie between 0 and 0.5")
        if self.least_rounds < 1 or self.tail_draws < 1:
            raise ValueError("least_rounds and tail_draws must be at least 1")


@dataclass(frozen=True, slots=True)
class ShapeRounds:
    """The rounds of one shape, in microseconds.

    Attributes:
        name: Name of the shape; unique in a comparison.
        baseline: Rounds of the baseline.
        current: Rounds of the current kernel.
        interleaved: Whether round i of both were measured next to each other, in one session.
        noise: Measured noise between sessions, as a share (``Noise.limit``); None if not measured. Ignored for
            interleaved rounds.
        threshold: Least change that matters for this shape; None for the policy's.
        clocks_mhz: SM clocks of the baseline's and of the current session; None if unknown. Ignored for interleaved
            rounds.
    """

    name: str
    baseline: Sequence[float]
    current: Sequence[float]
    interleaved: bool = False
    noise: float | None = None
    threshold: float | None = None
    clocks_mhz: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ShapeVerdict:
    """The verdict on one shape or on the geometric mean.

    Attributes:
        name: Name of the shape.
        state: The verdict.
        ratio: Median of the current kernel over that of the baseline.
        low: Lower end of the wide interval of the ratio, which decides ``slower`` and ``faster``.
        high: Upper end of the wide interval.
        same_low: Lower end of the narrow interval, which decides ``same``.
        same_high: Upper end of the narrow interval.
        threshold: Threshold that applied, as a share.
        rounds: Numbers of rounds of the baseline and of the current kernel.
        needed: Estimated rounds a side that would decide it; None if it is decided, or no number would suffice.
        notes: Reservations: assumed noise, drift, clocks, too few rounds.
    """

    name: str
    state: State
    ratio: float
    low: float
    high: float
    same_low: float
    same_high: float
    threshold: float
    rounds: tuple[int, int]
    needed: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def baseline_outdated(self) -> bool:
        """Whether it is faster: until the baseline is measured again, it hides a slowdown of that size."""
        return self.state == "faster"

    def __str__(self) -> str:
        text = f"{self.state} {_share(self.ratio)} ({_share(self.low)} to {_share(self.high)})"
        return text if self.needed is None else f"{text}; about {self.needed} rounds a side would decide"


def _share(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"


@dataclass(frozen=True)
class Verdict:
    """The verdicts of one comparison.

    Attributes:
        shapes: One verdict a shape, in the order of the shapes.
        geomean: Verdict on the geometric mean of all shapes; None for a single shape.
        hypotheses: Number of verdicts that share ``Policy.alpha``.
    """

    shapes: tuple[ShapeVerdict, ...]
    geomean: ShapeVerdict | None
    hypotheses: int

    @property
    def everything(self) -> tuple[ShapeVerdict, ...]:
        """Verdicts on the shapes and on the geometric mean."""
        return self.shapes if self.geomean is None else (*self.shapes, self.geomean)

    @property
    def state(self) -> State:
        """Worst state: slower, ambiguous, faster, same in this order."""
        states = {verdict.state for verdict in self.everything}
        return next((state for state in ("slower", "ambiguous", "faster") if state in states), "same")


@dataclass(frozen=True, slots=True)
class _Intervals:
    """A log ratio with its two intervals."""

    point: float
    wide: tuple[float, float]
    narrow: tuple[float, float]

    def shifted(self, by: float) -> _Intervals:
        wide, narrow = (self.wide[0] + by, self.wide[1] + by), (self.narrow[0] + by, self.narrow[1] + by)
        return _Intervals(self.point + by, wide, narrow)

    def state(self, threshold: float) -> State:
        """Return the state at a threshold, which is a share and counts alike in both directions on the log scale."""
        limit = math.log1p(threshold)
        if self.wide[0] > limit:
            return "slower"
        if self.wide[1] < -limit:
            return "faster"
        if -limit <= self.narrow[0] and self.narrow[1] <= limit:
            return "same"
        return "ambiguous"

    def needed(self, threshold: float, rounds: int) -> int | None:
        """Return the number of rounds that would decide; None if it is more than 100 times as many.

        An interval's width is proportional to 1 / sqrt(rounds). It must fit between the point and the threshold.
        """
        limit, distance = math.log1p(threshold), abs(self.point)
        gap = limit - distance
        half = (self.narrow[1] - self.narrow[0]) / 2 if gap > 0 else (self.wide[1] - self.wide[0]) / 2
        if gap == 0 or half == 0:
            return None
        factor = (half / abs(gap)) ** 2
        return math.ceil(rounds * factor) if 1 < factor <= 100 else None


def compare(shapes: Sequence[ShapeRounds], policy: Policy | None = None) -> Verdict:
    """Compare the rounds of all shapes.

    Args:
        shapes: The rounds of all shapes of one check, whose verdicts share the error rate.
        policy: Parameters of the verdicts.

    Raises:
        RoundsError: There are no shapes, two have the same name, or rounds are missing, invalid or do not pair up.
    """
    policy = policy or Policy()
    if not shapes:
        raise RoundsError("nothing to compare: no shapes were given")
    names = [shape.name for shape in shapes]
    if len(set(names)) != len(names) or GEOMEAN in names:
        twice = next((name for name in names if names.count(name) > 1), GEOMEAN)
        raise RoundsError(f"two verdicts would have the name {twice!r}; give each shape a unique name")
    hypotheses = len(shapes) + (len(shapes) > 1)
    level = 1 - policy.alpha / hypotheses
    resamples = math.ceil(policy.tail_draws / ((1 - level) / 2))  # so that each tail holds tail_draws of them
    verdicts, ratios, thresholds = [], [], []
    for shape in shapes:
        ratio = _ratio(shape, policy, resamples)
        threshold, notes = _threshold(shape, policy)
        verdicts.append(_judge(shape, ratio, threshold=threshold, notes=notes, level=level, policy=policy))
        ratios.append(ratio)
        thresholds.append(threshold)
    geomean = _geomean(verdicts, ratios, thresholds, level, policy) if len(shapes) > 1 else None
    return Verdict(tuple(verdicts), geomean, hypotheses)


def _ratio(shape: ShapeRounds, policy: Policy, resamples: int) -> LogRatio:
    baseline = as_rounds(shape.baseline, what=f"the baseline of {shape.name}")
    current = as_rounds(shape.current, what=f"{shape.name}")
    enough = min(baseline.size, current.size) >= _TOGETHER * policy.least_rounds
    if enough and max(block_length(baseline), block_length(current)) > 1:
        baseline, current = _in_fours(baseline), _in_fours(current)
    return log_ratio(
        baseline,
        current,
        interleaved=shape.interleaved,
        resamples=resamples,
        rng=generator(policy.seed, shape.name),
    )


def _in_fours(rounds: Floats) -> Floats:
    """Return means of neighbouring rounds, without an incomplete rest at the end."""
    count = rounds.size // _TOGETHER
    means: Floats = rounds[: count * _TOGETHER].reshape(count, _TOGETHER).mean(axis=1)
    return means


def _threshold(shape: ShapeRounds, policy: Policy) -> tuple[float, list[str]]:
    """Return the threshold of a shape, and a note if it is the noise between sessions."""
    threshold = policy.threshold if shape.threshold is None else shape.threshold
    if not 0 <= threshold < 1:
        raise ValueError(f"{shape.name}: threshold = {threshold!r} must be a share of at least 0 and below 1")
    if shape.interleaved:
        return threshold, []
    if shape.noise is None:
        assumed = f"{100 * policy.unmeasured_noise:g} % is assumed"
        note = f"the noise between sessions was not measured on this device: {assumed}"
        return max(threshold, policy.unmeasured_noise), [note]
    if shape.noise > threshold:
        return shape.noise, [f"the threshold is the measured noise between sessions, {100 * shape.noise:.2g} %"]
    return threshold, []


def _judge(
    shape: ShapeRounds, ratio: LogRatio, *, threshold: float, notes: list[str], level: float, policy: Policy
) -> ShapeVerdict:
    intervals = _Intervals(ratio.point, ratio.interval(level), ratio.interval(1 - 2 * policy.same_alpha))
    state = intervals.state(threshold)
    fewest = min(len(shape.baseline), len(shape.current))
    needed = intervals.needed(threshold, fewest) if state == "ambiguous" and ratio.hull is None else None
    if ratio.hull is not None:
        notes.append(
            f"the rounds drift: stretches of one session differ by up to {100 * ratio.swing:.1f} %; the interval "
            "covers all of them. Interleave the rounds of both kernels"
        )
    if fewest < policy.least_rounds:
        state, needed = "ambiguous", policy.least_rounds
        notes.append(f"{fewest} rounds are too few for a verdict: at least {policy.least_rounds} a side are needed")
    if not shape.interleaved and shape.clocks_mhz is not None:
        before, after = shape.clocks_mhz
        shift = math.log(after / before)
        # Compute scales with the SM clock and memory does not, so the verdict must hold in cycles and in microseconds.
        in_cycles = intervals.shifted(shift).state(threshold)
        if abs(shift) > _CLOCK_STEP and in_cycles != state:
            notes.append(
                f"the SM clock was {before:.0f} MHz for the baseline and is {after:.0f} MHz now: in microseconds it is "
                f"{state}, in cycles {in_cycles} ({_share(math.exp(ratio.point + shift))})"
            )
            state, needed = "ambiguous", None
    rounds = len(shape.baseline), len(shape.current)
    return _verdict(shape.name, state, intervals, threshold, rounds, needed=needed, notes=notes)


def _geomean(
    verdicts: Sequence[ShapeVerdict],
    ratios: Sequence[LogRatio],
    thresholds: Sequence[float],
    level: float,
    policy: Policy,
) -> ShapeVerdict:
    """Judge the geometric mean of the ratios: the mean of their logarithms, resampled shape by shape.

    Noise between sessions may be common to all shapes and then does not average out, so the threshold is the mean of
    the shapes' thresholds.
    """
    count = len(ratios)
    point = sum(ratio.point for ratio in ratios) / count
    drawn = [ratio.draws for ratio in ratios if ratio.draws is not None]
    # A shape that drifts has no draws: the ends of its hull are added to the draws of the others.
    low = sum(ratio.hull[0] for ratio in ratios if ratio.hull) / count
    high = sum(ratio.hull[1] for ratio in ratios if ratio.hull) / count
    total: Floats = np.sum(drawn, axis=0) / count if drawn else np.zeros(1)

    def ends(width: float) -> tuple[float, float]:
        tail = (1 - width) / 2
        below, above = np.quantile(total, [tail, 1 - tail])
        return min(float(below) + low, point), max(float(above) + high, point)

    intervals = _Intervals(point, ends(level), ends(1 - 2 * policy.same_alpha))
    threshold = sum(thresholds) / count
    state = intervals.state(threshold)
    rounds = min(verdict.rounds[0] for verdict in verdicts), min(verdict.rounds[1] for verdict in verdicts)
    notes = []
    if min(rounds) < policy.least_rounds:
        state = "ambiguous"
        notes.append("a shape has too few rounds")
    if state in ("faster", "slower") and any("SM clock" in note for verdict in verdicts for note in verdict.notes):
        state = "ambiguous"
        notes.append("a shape's verdict depends on the unit, because the SM clock changed")
    needed = None
    if state == "ambiguous" and not (notes or low or high):
        needed = intervals.needed(threshold, min(rounds))
    return _verdict(GEOMEAN, state, intervals, threshold, rounds, needed=needed, notes=notes)


def _verdict(
    name: str,
    state: State,
    intervals: _Intervals,
    threshold: float,
    rounds: tuple[int, int],
    *,
    needed: int | None,
    notes: Sequence[str],
) -> ShapeVerdict:
    return ShapeVerdict(
        name=name,
        state=state,
        ratio=math.exp(intervals.point),
        low=math.exp(intervals.wide[0]),
        high=math.exp(intervals.wide[1]),
        same_low=math.exp(intervals.narrow[0]),
        same_high=math.exp(intervals.narrow[1]),
        threshold=threshold,
        rounds=rounds,
        needed=needed,
        notes=tuple(notes),
    )
