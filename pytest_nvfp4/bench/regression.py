"""The regression verdict: did a kernel become faster or slower, stay the same, or can these rounds not tell.

For each shape, and for the geometric mean of all, the ratio of medians (current over baseline) gets two bootstrap
intervals, and its threshold is the larger of what the user asks for and what the machine's own noise can fake:

``slower``     the wide interval lies above the threshold
``faster``     the wide interval lies below minus the threshold
``same``       the narrow interval lies within the threshold on both sides
``ambiguous``  none of these: the rounds are too few or too noisy, or they drift; the verdict says how many would do

**Error rates it is designed for.** Whatever the true ratios within the thresholds, the chance that *any* shape or the
geometric mean is called slower or faster is at most ``Policy.alpha`` (1 %): the wide interval has the level
``1 - alpha / hypotheses`` (Bonferroni, over the shapes and the geometric mean, both directions; it holds under any
dependence between shapes, and leaves the interval that is shown the one that decides). ``same`` is an equivalence test
(two one-sided tests; the narrow interval has the level ``1 - 2 * same_alpha``): a true change beyond the threshold is
called the same with a chance of at most ``Policy.same_alpha`` (5 %) for each shape. These hold for rounds that a
bootstrap of blocks describes; noise that differs between sessions is in the threshold, not in the intervals.

**Rounds in fours.** On an H200 short kernels take 1 us longer every second or every fourth round (see
``device.worker.clock``): a median of two equally frequent values is either of them. Where neighbouring rounds depend
on each other, and there are enough, the medians are those of the means of four, which have no such pattern.

**Rounds of two sessions** differ by more than their own spread: other addresses, another temperature, another card.
Only a measured noise (``stats.aa_noise``) says by how much; without one, ``Policy.unmeasured_noise`` is assumed and the
verdict says so. **Interleaved rounds** of one session share all that, so they need no such allowance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pytest_nvfp4.bench.stats import Floats, LogRatio, RoundsError, as_rounds, block_length, generator, log_ratio

State = Literal["faster", "slower", "same", "ambiguous"]

GEOMEAN = "geomean"
"""Name of the geometric mean among the verdicts."""
_CLOCK_STEP = 0.005
_TOGETHER = 4
"""Neighbouring rounds whose mean is looked at."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How verdicts are reached; the module's documentation says what the rates mean.

    Attributes:
        threshold: Least change that matters, as a share; a shape may have its own.
        alpha: Chance of any false ``slower`` or ``faster`` in one comparison.
        same_alpha: Chance of a false ``same`` for one shape.
        unmeasured_noise: Noise between two sessions where it was not measured, as a share.
        least_rounds: Fewer rounds than this on one side are ambiguous.
        tail_draws: Bootstrap draws beyond each end of the wide interval; more draws make its ends steadier.
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
        for name, low, high in (
            ("threshold", 0.0, 1.0),
            ("unmeasured_noise", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) < high:
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
        interleaved: Round i of both were measured next to each other, in one session.
        noise: Measured noise between sessions, as a share (``Noise.limit``); None where it was not measured. Without
            meaning for interleaved rounds.
        threshold: Least change that matters for this shape; the policy's where None.
        clocks_mhz: SM clock of the baseline's session and of the current one, where both are known. Without meaning for
            interleaved rounds.
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
        high: Its upper end.
        same_low: Lower end of the narrow interval, which decides ``same``.
        same_high: Its upper end.
        threshold: The threshold that held, as a share.
        rounds: Rounds of the baseline and of the current kernel.
        needed: About how many rounds a side would decide it; None where it is decided, or where no number would do.
        notes: What else there is to know: assumed noise, drift, clocks, too few rounds.
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
        """It is faster beyond the threshold: until the baseline is measured anew, it hides a slowdown of that size."""
        return self.state == "faster"

    def __str__(self) -> str:
        text = f"{self.state} {_share(self.ratio)} ({_share(self.low)} to {_share(self.high)})"
        if self.needed is not None:
            text += f"; about {self.needed} rounds a side would tell"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON-compatible data."""
        return {
            name: list(value) if isinstance(value := getattr(self, name), tuple) else value
            for name in self.__dataclass_fields__
        }


def _share(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"


@dataclass(frozen=True)
class Verdict:
    """The verdicts of one comparison.

    Attributes:
        shapes: One for each shape, in the order they were given.
        geomean: The geometric mean of all shapes; None for a single shape.
        hypotheses: How many verdicts share ``Policy.alpha``.
        policy: How they were reached.
    """

    shapes: tuple[ShapeVerdict, ...]
    geomean: ShapeVerdict | None
    hypotheses: int
    policy: Policy = field(default_factory=Policy)

    @cached_property
    def everything(self) -> tuple[ShapeVerdict, ...]:
        """The shapes and the geometric mean."""
        return self.shapes if self.geomean is None else (*self.shapes, self.geomean)

    def of(self, state: State) -> tuple[ShapeVerdict, ...]:
        """The shapes, and the geometric mean, of one state."""
        return tuple(one for one in self.everything if one.state == state)

    @property
    def state(self) -> State:
        """The worst: slower if anything is, else ambiguous if anything is, else faster if anything is, else same."""
        states = {one.state for one in self.everything}
        return next((s for s in ("slower", "ambiguous", "faster") if s in states), "same")

    @property
    def baseline_outdated(self) -> bool:
        """Something is faster beyond its threshold: the baseline should be measured anew."""
        return any(one.baseline_outdated for one in self.everything)

    def as_dict(self) -> dict[str, Any]:
        """The verdicts as JSON-compatible data."""
        return {
            "state": self.state,
            "baseline_outdated": self.baseline_outdated,
            "hypotheses": self.hypotheses,
            "alpha": self.policy.alpha,
            "same_alpha": self.policy.same_alpha,
            "shapes": [shape.as_dict() for shape in self.shapes],
            "geomean": self.geomean.as_dict() if self.geomean else None,
        }


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Log ratios with the two intervals."""

    point: float
    wide: tuple[float, float]
    narrow: tuple[float, float]

    def shifted(self, by: float) -> _Intervals:
        wide, narrow = (self.wide[0] + by, self.wide[1] + by), (self.narrow[0] + by, self.narrow[1] + by)
        return _Intervals(self.point + by, wide, narrow)

    def state(self, threshold: float) -> State:
        """The verdict; the threshold is a share, and both directions are the same distance on the log scale."""
        limit = math.log1p(threshold)
        if self.wide[0] > limit:
            return "slower"
        if self.wide[1] < -limit:
            return "faster"
        if -limit <= self.narrow[0] and self.narrow[1] <= limit:
            return "same"
        return "ambiguous"

    def needed(self, threshold: float, rounds: int) -> int | None:
        """Rounds at which the intervals, shrinking with their root, would decide; None beyond 100 times as many."""
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
        shapes: The rounds; those of one check, so that its verdicts share the error rate.
        policy: How verdicts are reached.

    Raises:
        RoundsError: there are no shapes, two have the same name, or rounds are missing, no times, or do not pair up.
    """
    policy = policy or Policy()
    if not shapes:
        raise RoundsError("nothing to compare: no shapes were given")
    names = [shape.name for shape in shapes]
    if len(set(names)) != len(names) or GEOMEAN in names:
        twice = next((name for name in names if names.count(name) > 1), GEOMEAN)
        raise RoundsError(f"two verdicts would be called {twice!r}; give each shape a name of its own")
    hypotheses = len(shapes) + (len(shapes) > 1)
    level = 1 - policy.alpha / hypotheses
    resamples = math.ceil(policy.tail_draws / ((1 - level) / 2))
    verdicts, ratios, thresholds = [], [], []
    for shape in shapes:
        ratio = _ratio(shape, policy, resamples)
        threshold, notes = _threshold(shape, policy)
        verdicts.append(_judge(shape, ratio, threshold=threshold, notes=notes, level=level, policy=policy))
        ratios.append(ratio)
        thresholds.append(threshold)
    geomean = None
    if len(shapes) > 1:
        geomean = _geomean(verdicts, ratios, thresholds, level, policy)
    return Verdict(tuple(verdicts), geomean, hypotheses, policy)


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
    """Means of neighbouring rounds; what is left over at the end is left out."""
    count = rounds.size // _TOGETHER
    means: Floats = rounds[: count * _TOGETHER].reshape(count, _TOGETHER).mean(axis=1)
    return means


def _threshold(shape: ShapeRounds, policy: Policy) -> tuple[float, list[str]]:
    wanted = policy.threshold if shape.threshold is None else shape.threshold
    if not 0 <= wanted < 1:
        raise ValueError(f"{shape.name}: threshold = {wanted!r} must be a share of at least 0 and below 1")
    if shape.interleaved:
        return wanted, []
    if shape.noise is None:
        assumed = f"{100 * policy.unmeasured_noise:g} % is assumed"
        note = f"the noise between sessions was not measured on this device: {assumed}"
        return max(wanted, policy.unmeasured_noise), [note]
    if shape.noise > wanted:
        return shape.noise, [f"the threshold is the measured noise between sessions, {100 * shape.noise:.2g} %"]
    return wanted, []


def _judge(
    shape: ShapeRounds, ratio: LogRatio, *, threshold: float, notes: list[str], level: float, policy: Policy
) -> ShapeVerdict:
    found = _Intervals(ratio.point, ratio.interval(level), ratio.interval(1 - 2 * policy.same_alpha))
    state = found.state(threshold)
    fewest = min(len(shape.baseline), len(shape.current))
    needed = found.needed(threshold, fewest) if state == "ambiguous" and ratio.hull is None else None
    if ratio.hull is not None:
        notes.append(
            f"the rounds drift: stretches of one session differ by up to {100 * ratio.swing:.1f} %; the interval is "
            "what any of them gives. Interleave the rounds of both kernels"
        )
    if fewest < policy.least_rounds:
        state, needed = "ambiguous", policy.least_rounds
        notes.append(f"{fewest} rounds are too few for a verdict: at least {policy.least_rounds} a side are needed")
    if not shape.interleaved and shape.clocks_mhz is not None:
        before, after = shape.clocks_mhz
        shift = math.log(after / before)
        # Neither unit is right for a kernel that waits for memory at times, so a verdict must hold in both.
        if abs(shift) > _CLOCK_STEP and found.shifted(shift).state(threshold) != state:
            notes.append(
                f"the SM clock was {before:.0f} MHz for the baseline and is {after:.0f} MHz now: in microseconds it is "
                f"{state}, in cycles {found.shifted(shift).state(threshold)} ({_share(math.exp(ratio.point + shift))})"
            )
            state, needed = "ambiguous", None
    return _verdict(
        shape.name, state, found, threshold, (len(shape.baseline), len(shape.current)), needed=needed, notes=notes
    )


def _geomean(
    verdicts: Sequence[ShapeVerdict],
    ratios: Sequence[LogRatio],
    thresholds: Sequence[float],
    level: float,
    policy: Policy,
) -> ShapeVerdict:
    """The geometric mean of the ratios: the mean of their logarithms, resampled shape by shape.

    Noise between sessions may be common to all shapes, so that it does not average out: the threshold is the mean of
    theirs.
    """
    count = len(ratios)
    point = sum(ratio.point for ratio in ratios) / count
    drawn = [ratio.draws for ratio in ratios if ratio.draws is not None]
    # Where a shape drifts, its hull's ends are added to whatever the others draw.
    low = sum(ratio.hull[0] for ratio in ratios if ratio.hull) / count
    high = sum(ratio.hull[1] for ratio in ratios if ratio.hull) / count
    total: Floats = np.sum(drawn, axis=0) / count if drawn else np.zeros(1)

    def ends(width: float) -> tuple[float, float]:
        tail = (1 - width) / 2
        below, above = np.quantile(total, [tail, 1 - tail])
        return min(float(below) + low, point), max(float(above) + high, point)

    found = _Intervals(point, ends(level), ends(1 - 2 * policy.same_alpha))
    threshold = sum(thresholds) / count
    state = found.state(threshold)
    rounds = tuple(min(one.rounds[side] for one in verdicts) for side in (0, 1))
    notes = []
    if any(min(one.rounds) < policy.least_rounds for one in verdicts):
        state = "ambiguous"
        notes.append("a shape has too few rounds")
    if state in ("faster", "slower") and any("SM clock" in note for one in verdicts for note in one.notes):
        state = "ambiguous"
        notes.append("a shape's verdict depends on the unit, because the SM clock changed")
    needed = found.needed(threshold, min(rounds)) if state == "ambiguous" and not notes and not (low or high) else None
    return _verdict(GEOMEAN, state, found, threshold, (rounds[0], rounds[1]), needed=needed, notes=notes)


def _verdict(
    name: str,
    state: State,
    found: _Intervals,
    threshold: float,
    rounds: tuple[int, int],
    *,
    needed: int | None,
    notes: Sequence[str],
) -> ShapeVerdict:
    return ShapeVerdict(
        name=name,
        state=state,
        ratio=math.exp(found.point),
        low=math.exp(found.wide[0]),
        high=math.exp(found.wide[1]),
        same_low=math.exp(found.narrow[0]),
        same_high=math.exp(found.narrow[1]),
        threshold=threshold,
        rounds=rounds,
        needed=needed,
        notes=tuple(notes),
    )
