"""``model.large``: footprints of all clusters from a few, against schedules whose footprints are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.model.large import LEAST, Derivation, Observed, UnlikeError, samples
from pytest_nvfp4.model.recording import EVENT, OPERATION, Does, Program, Unit, WarpEvents


@dataclass(frozen=True)
class Schedule:
    """A launch of ``clusters`` on ``rows`` times ``columns`` tiles, rows first; two copies a tile, and one before all.

    ``ragged``: whether footprints have other shapes in the last row and the last column.
    """

    rows: int
    columns: int
    clusters: int
    a: tuple[int, int] = (16, 0)
    b: tuple[int, int] = (0, 32)
    ragged: bool = False
    odd: int = -1
    """A cluster that begins one line later; -1 for none."""

    @property
    def tiles(self) -> int:
        return self.rows * self.columns

    def program(self, trips: int) -> Program:
        issued = 1 + 4 * trips
        events = np.array([(Does.ISSUE, 1, 0 if n == 0 else 1 + (n - 1) % 2, n) for n in range(issued)], EVENT)
        operations = np.array([(Unit.TMA_LOAD, 0, n, -1, -1, -1) for n in range(issued)], OPERATION)
        empty = np.empty((0, 10), np.int32)
        return Program((WarpEvents(0, 0, "load", events),), operations, (), empty, np.empty(0, np.int32), (), issued)

    def cluster(self, number: int, programs: list[int]) -> Observed:
        tiles = range(number, self.tiles, self.clusters)
        first, shape = [1_000_000 + number], [0]
        for tile in tiles:
            row, column = tile % self.rows, tile // self.rows
            last = (row == self.rows - 1, column == self.columns - 1)
            for k in range(2):
                first += [
                    5000 + self.a[0] * row + self.a[1] * column + k,
                    90_000 + self.b[0] * row + self.b[1] * column + 2 * k,
                ]
                shape += [int(last[0] and self.ragged), 2 * int(last[1] and self.ragged)]
        moved = np.array(first, np.int64) + (number == self.odd)
        return Observed(programs.index(len(tiles)), moved, np.array(shape, np.int64))


def derive(schedule: Schedule) -> tuple[dict[int, Observed], dict[int, Observed]]:
    """Return what was derived, and what had to be simulated."""
    counts = sorted({len(range(c, schedule.tiles, schedule.clusters)) for c in range(schedule.clusters)}, reverse=True)
    simulated: dict[int, Observed] = {}

    def simulate(numbers: list[int]) -> None:
        simulated.update({number: schedule.cluster(number, counts) for number in numbers})

    simulate(samples(schedule.clusters))
    derivation = Derivation(schedule.clusters, [schedule.program(trips) for trips in counts], simulate)
    return derivation.derive(lambda: dict(simulated)), simulated


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 20),
    clusters=st.integers(LEAST, 60),
    a=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    b=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    ragged=st.booleans(),
)
def test_what_is_derived_is_right(
    rows: int, columns: int, clusters: int, a: tuple[int, int], b: tuple[int, int], ragged: bool
) -> None:
    if rows * columns < clusters:
        return
    schedule = Schedule(rows, columns, clusters, a, b, ragged)
    try:
        derived, simulated = derive(schedule)
    except UnlikeError:
        return
    counts = sorted({len(range(c, schedule.tiles, clusters)) for c in range(clusters)}, reverse=True)
    assert derived.keys() | simulated.keys() == set(range(clusters))
    for number, each in derived.items():
        assert each.equals(schedule.cluster(number, counts)), number


@pytest.mark.parametrize("ragged", [False, True])
def test_a_gemms_schedule_is_derived_from_less_than_half_of_its_clusters(ragged: bool) -> None:
    derived, simulated = derive(Schedule(16, 28, 66, ragged=ragged))
    assert len(simulated) < 33
    assert len(derived) == 66 - len(simulated)


def test_a_simulated_cluster_that_does_something_else_is_unlike_the_others() -> None:
    with pytest.raises(UnlikeError):
        derive(Schedule(16, 28, 66, odd=2))


def test_a_cluster_decides_where_several_numbers_of_rows_fit() -> None:
    schedule = Schedule(12, 4, 48, a=(253, 0), b=(0, 253))
    first = [schedule.cluster(number, [1]).first[1] for number in samples(48)]
    assert (first[-1] - first[0] - 47 * 253) % (47 // 2) == 0  # two rows of tiles would fit the first samples
    derived, simulated = derive(schedule)
    assert len(derived) + len(simulated) == 48
    assert all(each.equals(schedule.cluster(number, [1])) for number, each in derived.items())


def test_what_a_simulated_cluster_does_else_is_seen_and_some_are_drawn_for_that() -> None:
    derived, simulated = derive(Schedule(16, 28, 66))
    drawn = list(simulated)[-2:]
    assert not set(drawn) & set(samples(66))
    for odd in drawn:
        with pytest.raises(UnlikeError, match=f"cluster {odd} does not do"):
            derive(Schedule(16, 28, 66, odd=odd))
    derive(Schedule(16, 28, 66, odd=next(iter(derived))))  # what is not simulated is not seen, as the module says
