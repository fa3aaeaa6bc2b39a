"""Recordings of launches whose clusters make segments, such as the tiles of one group of a grouped GEMM after another.

In a segment of consecutive clusters the ``p``-th of each period of ``P`` executes one program, and its ``r``-th
footprint begins at line

    base[p, r] + step[p, r] q

in the ``q``-th period and has a shape of its own. Three periods of a segment are simulated, from which ``P`` and the
constants follow; its last cluster and the one behind it, which are found by halving; and one that was drawn at random
between. A first guess of the length is that of the segment before. If several periods fit, as the rows of one column of
tiles do, the one with the longest segment is taken. As in ``large``, what is derived is not proved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pytest_nvfp4.model.large import Ints, Observed, UnlikeError

_PERIODS = (1, 2, 3, 4, 6, 8)
_SEEN = 3
"""Periods that are simulated: two for the constants, and one that is compared."""
_LONG = 12
"""Periods of a segment that is accepted at once. The rows of a column of tiles make a short one; a period that holds
them all makes a long one."""
_SHORT = 5
"""Fewest periods of a segment. The clusters of a shorter one are simulated."""
_MOST = 0.6
"""Share of simulated clusters from which on deriving the others does not pay off."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """The constants of a segment: for each cluster of a period the first one, and the steps of its footprints."""

    start: int
    first: tuple[Observed, ...]
    steps: tuple[Ints, ...]

    @property
    def period(self) -> int:
        return len(self.first)

    def cluster(self, number: int) -> Observed:
        """Return what a cluster does."""
        q, p = divmod(number - self.start, self.period)
        each = self.first[p]
        return Observed(each.program, each.first + q * self.steps[p], each.shape)


class Segments:
    """The footprints of all clusters of a launch.

    Args:
        clusters: Number of clusters.
        simulate: Simulates clusters.
        observed: Returns what the simulated clusters do, by number.
    """

    def __init__(
        self, clusters: int, simulate: Callable[[list[int]], None], observed: Callable[[], Mapping[int, Observed]]
    ) -> None:
        self._count = clusters
        self._simulate = simulate
        self._observed = observed
        self._random = random.Random(clusters)

    def derive(self) -> dict[int, Observed]:
        """Return what all clusters that were not simulated do. Raises UnlikeError if these would be too few."""
        derived: dict[int, Observed] = {}
        start = periods = 0
        while start < self._count:
            segment, end = self._longest(start, periods)
            if segment is None:
                self._known((start,))
                start += 1
                continue
            between = range(start + _SEEN * segment.period, end - 1)
            if len(between) > 1:
                self._known((self._random.choice(between),))
            known = self._observed()
            for number in between:
                own = segment.cluster(number)
                if number not in known:
                    derived[number] = own
                elif not known[number].equals(own):
                    raise UnlikeError(f"cluster {number} does not do what the others let expect")
            periods, start = (end - start) // segment.period, end
        return derived

    def _known(self, numbers: Iterable[int]) -> list[Observed]:
        numbers = list(numbers)
        missing = [number for number in numbers if number not in self._observed()]
        if missing:
            if len(self._observed()) + len(missing) > _MOST * self._count:
                raise UnlikeError("too many clusters differ from those before them")
            self._simulate(missing)
        known = self._observed()
        return [known[number] for number in numbers]

    def _longest(self, start: int, periods: int) -> tuple[_Segment | None, int]:
        """Return the longest segment that begins at a cluster, and the number behind its last cluster.

        A segment of as many periods as the one before is likely.
        """
        best: _Segment | None = None
        longest = start
        for period in _PERIODS:
            if start + _SEEN * period > self._count:
                break
            segment = self._segment(start, period)
            if segment is None:
                continue
            end = self._end(segment, start + periods * period)
            if end > longest and end - start >= _SHORT * period:
                best, longest = segment, end
            if end == self._count or end - start >= _LONG * period:
                break
        return best, longest

    def _segment(self, start: int, period: int) -> _Segment | None:
        """Return the constants of the segment that begins at a cluster; None if it has another period."""
        seen = self._known(range(start, start + _SEEN * period))
        pairs = list(zip(seen[:period], seen[period : 2 * period], strict=True))
        if any(one.program != other.program for one, other in pairs):
            return None
        steps = tuple(other.first - one.first for one, other in pairs)
        segment = _Segment(start, tuple(seen[:period]), steps)
        fits = all(segment.cluster(start + place).equals(each) for place, each in enumerate(seen))
        return segment if fits else None

    def _fits(self, segment: _Segment, number: int) -> bool:
        (real,) = self._known((number,))
        return real.equals(segment.cluster(number))

    def _end(self, segment: _Segment, likely: int) -> int:
        """Return the number behind the last cluster of a segment; ``likely`` is tried first."""
        good = segment.start + _SEEN * segment.period
        bad = self._count
        if good < likely < bad and self._fits(segment, likely - 1):
            good = likely
            if not self._fits(segment, likely):
                return likely
        elif good < bad and self._fits(segment, bad - 1):
            return bad
        step = segment.period
        while good + step < bad:
            if not self._fits(segment, good + step - 1):
                bad = good + step - 1
                break
            good += step
            step *= 2
        while good < bad:
            middle = (good + bad) // 2
            if self._fits(segment, middle):
                good = middle + 1
            else:
                bad = middle
        return good
