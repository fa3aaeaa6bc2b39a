"""Resample rounds: bootstrap medians that respect dependence, intervals of a ratio, noise between sessions.

Rounds of one process are neither normal nor independent: a clock steps, a chip warms up, a neighbour wakes. So nothing
here takes a mean or a variance of rounds. The statistic is the median; its distribution comes from resampling, in
blocks as long as the rounds remember (Kuensch 1989; circular blocks of Politis & Romano 1992; length of Politis & White
2004 with the correction of Patton, Politis & White 2009).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.bench.distributions import student_t_quantile

Floats = NDArray[np.float64]

LEAST_BLOCKS = 8
"""Blocks below which a block bootstrap is not believed: then the rounds say little more than one long swing."""
_CHUNK = 4_000_000


class RoundsError(ValueError):
    """Rounds that cannot be compared; the message says which and why."""


def as_rounds(values: Sequence[float] | Floats, *, what: str) -> Floats:
    """Rounds in microseconds as an array.

    Raises:
        RoundsError: there is none, or one of them is not a positive number.
    """
    rounds = np.asarray(values, dtype=np.float64)
    if rounds.ndim != 1 or rounds.size == 0:
        raise RoundsError(f"{what} has no rounds; at least one time in microseconds is needed")
    bad = np.flatnonzero(~(np.isfinite(rounds) & (rounds > 0)))
    if bad.size:
        raise RoundsError(f"{what}: round {int(bad[0])} is {rounds[bad[0]]} us, which is no time")
    return rounds


def generator(seed: int, name: str) -> np.random.Generator:
    """Random numbers of one shape: the same whatever else is compared beside it, and in whatever order."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def block_length(values: Floats) -> int:
    """How many neighbouring rounds belong together when the median is resampled; 1 where they are independent.

    What the median sees of a round is on which side of it the round lies, so dependence is measured on those signs.
    """
    n = values.size
    if n < 8:
        return 1
    signs = np.sign(values - np.median(values))
    signs -= signs.mean()
    if not np.any(signs):
        return 1
    spectrum = np.abs(np.fft.rfft(signs, 2 * n)) ** 2
    covariance = np.fft.irfft(spectrum)[:n] / n
    correlation = covariance / covariance[0]
    run = max(5, math.ceil(math.log10(n)))
    furthest = min(n - 1, math.ceil(math.sqrt(n)) + run)
    bound = 2 * math.sqrt(math.log10(n) / n)
    # The smallest lag after which `run` correlations in a row are insignificant; the furthest where there is none.
    insignificant = np.abs(correlation[1 : furthest + 1]) < bound
    if insignificant[:2].all():
        return 1  # what drifts shows between neighbours; a lone correlation further away is nearly always chance
    memory = furthest
    for lag in range(furthest):
        if insignificant[lag : lag + run].all():
            memory = lag
            break
    if memory == 0:
        return 1
    reach = min(2 * memory, n - 1)
    lags = np.arange(-reach, reach + 1)
    share = np.abs(lags) / reach
    weight = np.where(share <= 0.5, 1.0, 2 * (1 - share))  # flat-top window of Politis & Romano
    both = covariance[np.abs(lags)]
    spread = float((weight * np.abs(lags) * both).sum())
    at_zero = float((weight * both).sum())
    if at_zero <= 0:
        return 1
    length = (2 * spread**2 / (4 / 3 * at_zero**2)) ** (1 / 3) * n ** (1 / 3)
    return int(max(1, min(math.ceil(length), math.ceil(min(3 * math.sqrt(n), n / 3)))))


def bootstrap_medians(values: Floats, *, resamples: int, rng: np.random.Generator, block: int = 1) -> Floats:
    """Medians of resampled rounds.

    Independent rounds (``block`` 1) need no resamples to be made: the order statistic of rank k of n uniform draws is
    Beta(k, n - k + 1), so the median of a resample is drawn directly.

    Args:
        values: Rounds.
        resamples: How many medians.
        rng: Random numbers.
        block: Rounds that are drawn together, in a circle.
    """
    n = values.size
    if block <= 1:
        ordered = np.sort(values)
        rank = (n + 1) // 2
        low = rng.beta(rank, n - rank + 1, size=resamples)
        first = ordered[np.minimum((low * n).astype(np.int64), n - 1)]
        if n % 2:
            return first
        # Given the order statistic of rank k, that of rank k + 1 is the least of n - k uniform draws above it.
        high = 1 - (1 - low) * rng.random(resamples) ** (1 / (n - rank))
        return (first + ordered[np.minimum((high * n).astype(np.int64), n - 1)]) / 2
    blocks = -(-n // block)
    wrapped = np.concatenate([values, values[: block - 1]])
    windows = np.lib.stride_tricks.sliding_window_view(wrapped, block)
    medians = np.empty(resamples)
    step = max(1, _CHUNK // (blocks * block))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        drawn = windows[rng.integers(n, size=(count, blocks))].reshape(count, blocks * block)[:, :n]
        medians[start : start + count] = np.median(drawn, axis=1)
    return medians


@dataclass(frozen=True, slots=True)
class LogRatio:
    """The logarithm of a ratio of medians, current over baseline, and how it varies.

    Attributes:
        point: Its estimate.
        draws: Its bootstrap distribution; None where the rounds drift too much for one.
        hull: What any stretch of the rounds gives, and as far again; None where there are ``draws``.
        block: The block length; the longer of the two where baseline and current have their own.
        freedom: Independent pieces (rounds, or blocks of them) the draws rest on, less one for each median.
        swing: How far the medians of stretches of the rounds lie apart, as a share, where there is a ``hull``.
    """

    point: float
    draws: Floats | None
    hull: tuple[float, float] | None
    block: int
    freedom: int = 1
    swing: float = 0.0

    def interval(self, level: float) -> tuple[float, float]:
        """An interval of the given level; the whole hull where the rounds drift.

        From percentiles of the draws. Those of few rounds, or few blocks, are too narrow, as a normal interval is for
        few degrees of freedom (20 pairs at a level of 99 % leave out 1.8 %, simulated), so they are widened by the same
        factor: the ratio of Student's quantile to the normal one.
        """
        if self.hull is not None:
            return self.hull
        assert self.draws is not None
        tail = (1 - level) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail])
        factor = student_t_quantile(1 - tail, self.freedom) / NormalDist().inv_cdf(1 - tail)
        return self.point + factor * min(float(low) - self.point, 0), self.point + factor * max(
            float(high) - self.point, 0
        )


def _stretches(values: Floats) -> Floats:
    """Medians of consecutive stretches of the rounds, ``LEAST_BLOCKS`` of them where there are enough rounds."""
    count = min(values.size, max(2, min(LEAST_BLOCKS, values.size // 5)))
    return np.array([np.median(part) for part in np.array_split(values, count)])


def _drifts(values: Floats, block: int) -> bool:
    return block > 1 and values.size / block < LEAST_BLOCKS


def _hull(parts_low: Floats, parts_high: Floats, point: float, swing: float) -> tuple[float, float]:
    """Between the extremes of the stretches, and as far again on both sides as they swing: a session that drifts is
    one draw of where it might have drifted to."""
    return min(float(parts_low.min()), point) - swing, max(float(parts_high.max()), point) + swing


def log_ratio(
    baseline: Floats, current: Floats, *, interleaved: bool, resamples: int, rng: np.random.Generator
) -> LogRatio:
    """The log ratio of the medians of two sets of rounds.

    Args:
        baseline: Rounds of the baseline, in microseconds.
        current: Rounds of the current kernel.
        interleaved: Round i of both were measured next to each other. Then the median of the ratios of pairs is used:
            what moves slowly moves both sides of a pair and cancels. Otherwise the ratio of two medians is.
        resamples: Bootstrap resamples.
        rng: Random numbers.

    Raises:
        RoundsError: interleaved rounds that do not pair up.
    """
    if interleaved:
        if baseline.size != current.size:
            raise RoundsError(
                f"interleaved rounds come in pairs, and there are {baseline.size} of the baseline for {current.size} "
                "of the current kernel"
            )
        pairs = np.log(current) - np.log(baseline)
        block = block_length(pairs)
        point = float(np.median(pairs))
        if _drifts(pairs, block):
            parts = _stretches(pairs)
            swing = float(np.ptp(parts))
            return LogRatio(point, None, _hull(parts, parts, point, swing), block, swing=math.expm1(swing))
        draws = bootstrap_medians(pairs, resamples=resamples, rng=rng, block=block)
        return LogRatio(point, draws, None, block, max(1, pairs.size // block - 1))
    before, after = np.log(baseline), np.log(current)
    old_block, new_block = block_length(before), block_length(after)
    # The logarithm of the median of the times, not the median of the logarithms: they differ for an even count.
    point = math.log(float(np.median(current))) - math.log(float(np.median(baseline)))
    if _drifts(before, old_block) or _drifts(after, new_block):
        old, new = _stretches(before), _stretches(after)
        swing = float(max(np.ptp(old), np.ptp(new)))
        hull = _hull(new - old.max(), new - old.min(), point, swing)
        return LogRatio(point, None, hull, max(old_block, new_block), swing=math.expm1(swing))
    draws = bootstrap_medians(after, resamples=resamples, rng=rng, block=new_block) - bootstrap_medians(
        before, resamples=resamples, rng=rng, block=old_block
    )
    pieces = before.size // old_block, after.size // new_block
    # Independent rounds of both sides add up; where rounds depend on each other, the side with fewer blocks decides.
    freedom = sum(pieces) - 2 if old_block == new_block == 1 else min(pieces) - 1
    return LogRatio(point, draws, None, max(old_block, new_block), max(1, freedom))


@dataclass(frozen=True, slots=True)
class Noise:
    """How far two sessions of one and the same kernel lie apart.

    Attributes:
        sessions: How many sessions this was measured on.
        deviation: Standard deviation of the logarithm of a session's median.
        limit: What the ratio of two sessions' medians stays below with ``confidence``, minus one. It counts the
            uncertainty of few sessions (Student's t), so more sessions make it smaller.
        confidence: That confidence.
    """

    sessions: int
    deviation: float
    limit: float
    confidence: float


def aa_noise(sessions: Sequence[Sequence[float]], *, confidence: float = 0.99) -> Noise:
    """The noise between sessions (processes, leases) that measured the same kernel on the same problem and device.

    Raises:
        RoundsError: there are fewer than three sessions.
    """
    if len(sessions) < 3:
        raise RoundsError(
            f"the noise between sessions cannot be measured on {len(sessions)} of them: at least 3 are needed"
        )
    medians = np.array(
        [math.log(np.median(as_rounds(rounds, what=f"session {index}"))) for index, rounds in enumerate(sessions)]
    )
    deviation = float(medians.std(ddof=1))
    quantile = student_t_quantile(1 - (1 - confidence) / 2, len(sessions) - 1)
    return Noise(len(sessions), deviation, math.expm1(quantile * math.sqrt(2) * deviation), confidence)
