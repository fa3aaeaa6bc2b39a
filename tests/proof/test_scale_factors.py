"""Scale factors in global memory: against numpy, tensor-layouts and the codec; wrong layouts are refuted."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import tensor_layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.proof import scale_factors
from pytest_nvfp4.proof.solver import Obligation, Questions
from pytest_nvfp4.proof.statement import Limits, ProofVerdict, Status
from pytest_nvfp4.proof.symbolic import evaluate

z3 = pytest.importorskip("z3")
LIMITS = Limits(query_ms=600_000)


def run(build: Callable[[ModuleType], list[Obligation]]) -> ProofVerdict:
    return Questions(build).run(LIMITS)


@given(st.integers(0, 2000), st.integers(0, 200), st.integers(1, 50))
@settings(deadline=None, max_examples=200)
def test_the_formula_is_the_codecs(row, block, rest_k):
    assert scale_factors.formula(row, block, rest_k=rest_k) == scale_layout.offset(row, block, blocks=4 * rest_k)


@pytest.mark.parametrize("vector", [16, 32])
@pytest.mark.parametrize(("rest_m", "rest_k"), [(1, 1), (2, 3), (3, 1)])
def test_the_explicit_layout_is_the_formula_by_another_algebra(vector, rest_m, rest_k):
    shape = (((32, 4), rest_m), ((vector, 4), rest_k))
    layout = tensor_layouts.Layout(shape, (((16, 4), 512 * rest_k), ((0, 1), 512)))
    found = {}
    for row in range(0, 128 * rest_m, 5):
        for k in range(4 * vector * rest_k):
            offset = layout(row, k)
            assert offset == scale_factors.formula(row, k // vector, rest_k=rest_k)
            found.setdefault((row, offset), []).append(k)
    assert {len(shared) for shared in found.values()} == {vector}, "broadcast exactly V"


@pytest.mark.parametrize("vector", [16, 32])
def test_symbolic_evaluation_at_numbers_is_the_layouts_own(vector):
    """The digits of a number are unique, so z3 must find the value that calling the layout gives."""
    text = scale_factors.explicit(vector)
    static = parse_layout(scale_factors.static(vector, rest_m=3, rest_k=5))
    for row, k in ((0, 0), (1, 1), (31, 15), (32, 16), (127, 64), (128, 130), (300, 319)):
        row_term, k_term = z3.Ints("row k")
        found = evaluate(z3, parse_layout(text), (row_term, k_term), unknowns=(3, 5, 512 * 5))
        solver = z3.Solver()
        solver.add(*found.facts.values(), row_term == row, k_term == k)
        assert solver.check() == z3.sat
        value = solver.model().eval(found.value).as_long()
        solver.add(found.value != value)
        assert solver.check() == z3.unsat, "one value only"
        assert value == static((row, k))


def test_every_byte_is_hit_once_by_numpy():
    row, block = np.meshgrid(np.arange(384), np.arange(20), indexing="ij")
    offsets = scale_layout.offset(row, block, blocks=20)
    assert sorted(offsets.ravel().tolist()) == list(range(384 * 20))


WRONG = [
    ("(((32,4),?),((16,4),?)):(((4,128),?),((0,1),512))", "rows one after another"),
    ("(((4,32),?),((16,4),?)):(((4,16),?),((0,1),512))", "rows 4 apart first"),
    ("(((32,4),?),((16,4),?)):(((16,4),?),((0,1),1024))", "tiles of k 1024 apart"),
    ("(((32,4),?),((16,4),?)):(((16,4),?),((1,16),512))", "no broadcast"),
    ("(((32,4),?),((32,2),?)):(((16,4),?),((0,1),512))", "32 to a factor where 16 share one"),
    ("(((32,4),?),((16,4),?)):(((4,16),?),((0,1),512))", "strides exchanged"),
]


@pytest.mark.parametrize(("text", "what"), WRONG, ids=[what for _, what in WRONG])
def test_a_wrong_layout_is_refuted(text, what):
    verdict = run(lambda z3: scale_factors.equal_obligations(z3, 16, text))
    assert verdict.status is Status.REFUTED, what
    assert "r = " in verdict.counterexample


@pytest.mark.parametrize("stride", [256, 511, 1024])
def test_a_wrong_stride_between_tiles_of_rows_is_refuted(stride):
    verdict = run(lambda z3: scale_factors.equal_obligations(z3, 16, tile_stride=stride))
    assert verdict.status is Status.REFUTED


@pytest.mark.parametrize(("vector", "claimed"), [(16, 32), (16, 8), (32, 16), (16, 17)])
def test_another_broadcast_is_refuted(vector, claimed):
    verdict = run(lambda z3: scale_factors.broadcast_obligations(z3, vector, claimed=claimed))
    assert verdict.status is Status.REFUTED
    one, other = (int(part.rpartition("=")[2]) for part in verdict.counterexample.partition(" at ")[2].split(","))
    same_byte = one // vector == other // vector
    assert same_byte != (one // claimed == other // claimed), "the counterexample is one"


def test_the_example_of_tiles_that_are_too_few():
    assert scale_factors.formula(0, 16, rest_k=4) == scale_factors.formula(128, 0, rest_k=4) == 2048


def test_what_cannot_be_evaluated_is_named():
    layout = parse_layout("(4,?):(1,?)")
    with pytest.raises(LayoutError, match="2 modes, and the coordinate 1"):
        evaluate(z3, layout, (1,), unknowns=(1, 1))
    with pytest.raises(LayoutError, match="1 values do not match"):
        evaluate(z3, layout, (1, 2), unknowns=(1,))
    with pytest.raises(LayoutError, match="not an integer"):
        evaluate(z3, parse_layout("(4,4):(1@0,1@1)"), (1, 2))


def test_the_exhaustive_tile_sees_one_wrong_place():
    good = scale_factors.static(16, rest_m=2, rest_k=3)
    assert scale_factors.compare_tile(good, vector=16) == (None, 256 * 192)
    assert scale_factors.compare_tile(good.replace("1536", "1537"), vector=16)[0] is not None
    assert "places" in scale_factors.compare_tile(good, vector=16, rest_m=1)[0]
