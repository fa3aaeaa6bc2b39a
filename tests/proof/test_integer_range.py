"""32-bit bounds: on both sides of each, with the machine's own arithmetic (numpy wraps as a GPU does)."""

import numpy as np
import pytest

from pytest_nvfp4.proof import integer_range, solver
from pytest_nvfp4.proof.solver import Questions
from pytest_nvfp4.proof.statement import Limits, Status

pytest.importorskip("z3")


def tiles(m: int, tile: int) -> int:
    """ceil(m / tile) in 32 bits, C's division."""
    with np.errstate(over="ignore"):
        total = np.int32(m) + np.int32(tile - 1)
    return int(np.trunc(np.float64(total) / tile))


@pytest.mark.parametrize("tile", [1, 2, 64, 100, 128, 192, 256])
def test_the_bound_on_m_is_the_largest(tile):
    largest = 2**31 - tile
    assert tiles(largest, tile) == -(-largest // tile)
    if tile > 1:
        assert tiles(largest + 1, tile) < 0


def test_the_bound_on_groups_is_the_largest():
    """The last turn of the binary search that goes on: low = G - 2, high = G."""
    with np.errstate(over="ignore"):
        assert np.int32(2**30 - 2) + np.int32(2**30) > 0
        assert np.int32(2**30 - 1) + np.int32(2**30 + 1) < 0


def test_the_bound_of_a_persistent_step_is_the_largest():
    total, ctas = 2**31 - 148, 148
    with np.errstate(over="ignore"):
        assert np.int32(total - 1) + np.int32(ctas) > 0
        assert np.int32(total) + np.int32(ctas) < 0


@pytest.mark.parametrize("tile", [64, 128, 256])
def test_the_machines_division_is_proved_up_to_the_bound_only(tile):
    def ask(largest):
        build = Questions(lambda z3: integer_range.machine_obligations(z3, tile=tile, largest=largest))
        return build.run(Limits(query_ms=600_000))

    assert ask(2**31 - tile).status is Status.PROVED
    above = ask(2**31 - tile + 1)
    assert above.status is Status.REFUTED
    assert f"m = {2**31 - tile + 1}" in above.counterexample


def test_each_bound_raised_by_one_is_refuted():
    z3 = solver.load()
    raised = {}

    for obligation in integer_range.range_obligations(z3, slack=1):
        raised[obligation.name] = Questions(lambda _, one=obligation: [one]).run(Limits(query_ms=600_000)).status
    assert {name for name, status in raised.items() if status is Status.REFUTED} >= {
        "the sum before the division by the tile",
        "the binary search",
        "prefix sums",
        "a persistent grid's step",
    }
    assert Status.UNKNOWN not in raised.values()
