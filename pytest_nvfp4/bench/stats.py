"""Statistics of rounds: bootstrap medians that respect dependence, intervals of a ratio, noise between sessions.

Rounds of one process are neither normal nor independent: clocks step, chips warm up, other programs start. The
statistic is therefore the median, never a mean or a variance of rounds. Its distribution comes from resampling in
blocks as long as the dependence of the rounds (Kuensch 1989; circular blocks of Politis & Romano 1992; length of
Politis & White 2004 with the correction of Patton, Politis & White 2009).
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
"""Number of blocks below which the rounds count as drifting: a bootstrap of so few blocks has no meaning."""
_CHUNK = 4_000_000
"""Resampled rounds in memory at a time (32 MB of doubles)."""


class RoundsError(ValueError):
    """Rounds that cannot be compared."""


def as_rounds(values: Sequence[float] | Floats, *, what: str) -> Floats:
    """Return rounds in microseconds as an array.

    Raises:
        RoundsError: There is none, or one of them is not a positive number.
    """
    rounds = np.asarray(values, dtype=np.float64)
    if rounds.ndim != 1 or rounds.size == 0:
        raise RoundsError(f"{what} has no rounds; at least one time in microseconds is needed")
    bad = np.flatnonzero(~(np.isfinite(rounds) & (rounds > 0)))
    if bad.size:
        raise RoundsError(f"{what}: round {int(bad[0])} is {rounds[bad[0]]} us; times must be positive and finite")
    return rounds


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of one shape, independent of the other shapes of a comparison and of their order."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def block_length(values: Floats) -> int:
    """Return the number of neighbouring rounds to resample together; 1 if the rounds are independent.

    The median depends on a round only by the side on which it lies, so dependence is measured on those signs.
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
    # The smallest lag after which `run` correlations in a row are insignificant, else the furthest.
    insignificant = np.abs(correlation[1 : furthest + 1]) < bound
    if insignificant[:2].all():
        return 1  # Drift shows between neighbours; a lone correlation at a longer lag is nearly always chance.
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
    # Politis & White 2004, with 4/3 of Patton et al. 2009: b = (2 G^2 / D)^(1/3) n^(1/3), D = 4/3 g(0)^2.
    length = (2 * spread**2 / (4 / 3 * at_zero**2)) ** (1 / 3) * n ** (1 / 3)
    return int(max(1, min(math.ceil(length), math.ceil(min(3 * math.sqrt(n), n / 3)))))


def bootstrap_medians(values: Floats, *, resamples: int, rng: np.random.Generator, block: int = 1) -> Floats:
    """Return medians of resampled rounds.

    The median of a resample of independent rounds (``block`` 1) is drawn directly: the order statistic of rank k of n
    uniform draws has the distribution Beta(k, n - k + 1).

    Args:
        values: Rounds.
        resamples: Number of medians.
        rng: Random numbers.
        block: Number of consecutive rounds that are drawn together; the last round is followed by the first.
    """
    n = values.size
    if block <= 1:
        ordered = np.sort(values)
        rank = (n + 1) // 2
        low = rng.beta(rank, n - rank + 1, size=resamples)
        first = ordered[np.minimum((low * n).astype(np.int64), n - 1)]
        if n % 2:
            return first
        # Given the order statistic of rank k, that of rank k + 1 is the minimum of n - k uniform draws above it.
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
    """The logarithm of a ratio of medians, current over baseline, and its distribution.

    Attributes:
        point: Estimate.
        draws: Bootstrap distribution; None if the rounds drift too much for one.
        hull: Range over all stretches of the rounds, widened by its own size; None if there are ``draws``.
        block: Block length; the longer of the two if baseline and current have their own.
        freedom: Number of independent pieces (rounds, or blocks of them) behind the draws, less one for each median.
        swing: Largest difference of the medians of stretches of the rounds, as a share; 0 without a ``hull``.
    """

    point: float
    draws: Floats | None
    hull: tuple[float, float] | None
    block: int
    freedom: int = 1
    swing: float = 0.0

    def interval(self, level: float) -> tuple[float, float]:
        """Return an interval of the given level from percentiles of the draws; the hull if the rounds drift.

        Percentiles from few rounds or blocks are too narrow, as a normal interval is for few degrees of freedom (20
        pairs at a level of 99 % miss 1.8 %, simulated). They are widened by the ratio of Student's quantile to the
        normal one.
        """
        if self.hull is not None:
            return self.hull
        assert self.draws is not None
        tail = (1 - level) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail])
        factor = student_t_quantile(1 - tail, self.freedom) / NormalDist().inv_cdf(1 - tail)
        below, above = min(float(low) - self.point, 0), max(float(high) - self.point, 0)
        return self.point + factor * below, self.point + factor * above


def _stretches(values: Floats) -> Floats:
    """Return medians of consecutive stretches of the rounds: ``LEAST_BLOCKS`` of them if there are enough rounds."""
    count = min(values.size, max(2, min(LEAST_BLOCKS, values.size // 5)))
    return np.array([np.median(part) for part in np.array_split(values, count)])


def _drifts(values: Floats, block: int) -> bool:
    return block > 1 and values.size / block < LEAST_BLOCKS


def _hull(parts_low: Floats, parts_high: Floats, point: float, swing: float) -> tuple[float, float]:
    """Return the range of the stretches, widened by ``swing`` on both sides: a session shows only one drift of many."""
    return min(float(parts_low.min()), point) - swing, max(float(parts_high.max()), point) + swing


def log_ratio(
    baseline: Floats, current: Floats, *, interleaved: bool, resamples: int, rng: np.random.Generator
) -> LogRatio:
    """Return the log ratio of the medians of two sets of rounds.

    Args:
        baseline: Rounds of the baseline, in microseconds.
        current: Rounds of the current kernel, in microseconds.
        interleaved: Whether round i of both were measured next to each other. The median of the ratios of pairs is used
            then, as slow changes cancel within a pair, otherwise the ratio of the two medians.
        resamples: Number of bootstrap resamples.
        rng: Random numbers.

    Raises:
        RoundsError: Interleaved rounds do not pair up.
    """
    if interleaved:
        if baseline.size != current.size:
            raise RoundsError(
                f"interleaved rounds must come in pairs: {baseline.size} of the baseline, {current.size} of the "
                "current kernel"
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
    # Degrees of freedom of independent rounds add up; with blocks, the side with fewer of them bounds the freedom.
    freedom = sum(pieces) - 2 if old_block == new_block == 1 else min(pieces) - 1
    return LogRatio(point, draws, None, max(old_block, new_block), max(1, freedom))


@dataclass(frozen=True, slots=True)
class Noise:
    """Difference between sessions that measured the same kernel.

    Attributes:
        deviation: Standard deviation of the logarithm of a session's median.
        limit: Bound of the ratio of two sessions' medians minus one, at a confidence. It includes the uncertainty of
            few sessions (Student's t), so more sessions make it smaller.
    """

    deviation: float
    limit: float


def aa_noise(sessions: Sequence[Sequence[float]], *, confidence: float = 0.99) -> Noise:
    """Return the noise between sessions (processes, leases) of the same kernel, problem and device.

    Raises:
        RoundsError: There are fewer than three sessions.
    """
    if len(sessions) < 3:
        raise RoundsError(f"{len(sessions)} sessions are too few to measure the noise between them; at least 3 needed")
    medians = np.array(
        [math.log(np.median(as_rounds(rounds, what=f"session {index}"))) for index, rounds in enumerate(sessions)]
    )
    deviation = float(medians.std(ddof=1))
    quantile = student_t_quantile(1 - (1 - confidence) / 2, len(sessions) - 1)
    # The logarithm of a ratio of two sessions has sqrt(2) times the deviation of one.
    return Noise(deviation, math.expm1(quantile * math.sqrt(2) * deviation))
