"""Composition is what it says on every index, or an error that names the index."""

from __future__ import annotations

import pytest
from hypothesis import given

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import rank, size
from pytest_nvfp4.layout.compose import composition, fit
from pytest_nvfp4.layout.errors import CompositionError, DynamicLayoutError
from pytest_nvfp4.layout.grammar import parse_layout, parse_term
from pytest_nvfp4.layout.notation import ComposedLayout, Layout
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.tree import congruent
from tests.layout.composed import _leaf_shapes, has_layout, layout_values


@given(strategies.layouts(max_size=64), strategies.layouts(max_size=64))
def test_the_law(a: Layout, b: Layout) -> None:
    truth = [a(b(index)) for index in range(size(b))]
    if not has_layout(truth, b):
        with pytest.raises(CompositionError) as error:
            composition(a, b)
        assert error.value.index is not None
        return
    result = composition(a, b)
    assert [result(index) for index in range(size(b))] == truth
    assert size(result) == size(b)
    assert not isinstance(b.shape, tuple) or rank(result) == rank(b)


@given(strategies.layouts(max_size=256), strategies.layouts(max_size=64, max_rank=2))
def test_the_shape_nests_as_the_second(a: Layout, b: Layout) -> None:
    try:
        result = composition(a, b)
    except CompositionError:
        return
    assert isinstance(result, Layout)
    if not any(isinstance(part, tuple) for part in _leaf_shapes(result.shape, b.shape)):
        assert congruent(result.shape, b.shape)


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("(6,2):(8,2)", "(4,3):(3,1)", "((2,2),3):((24,2),8)"),
        ("20:2", "(5,4):(4,1)", "(5,4):(8,2)"),
        ("(10,2):(16,4)", "(5,4):(1,5)", "(5,(2,2)):(16,(80,4))"),
        ("(4,8):(8,1)", "(2,4):(2,4)", "(2,4):(16,1)"),
        ("(64,64):(1@1,1@0)", "(8,(4,8)):(64,(1,8))", "(8,(4,8)):(1@0,(1@1,8@1))"),
        ("(8,8):(8,1)", "(4,2):(1@1,1@0)", "(4,2):(1,8)"),
        ("8:1", "(2,4):(0,2)", "(2,4):(0,2)"),
        ("(4,2):(1,10)", "8:2", "(2,4):(2,10)"),
    ],
)
def test_results(a: str, b: str, result: str) -> None:
    assert str(composition(parse_layout(a), parse_layout(b))) == result


@pytest.mark.parametrize(
    ("a", "b", "index"),
    [
        ("(2,3,2):(1,4,2)", "(4,2):(1,4)", 6),  # CuTe DSL 4.8.1 returns ((2,2),2):((1,4),8) for this
        ("(4,8):(8,1)", "(2,3):(5,7)", 4),
        ("(4,8):(8,1)", "3:3", 2),
    ],
)
def test_what_is_no_layout_is_refused(a: str, b: str, index: int) -> None:
    with pytest.raises(CompositionError) as error:
        composition(parse_layout(a), parse_layout(b))
    assert error.value.index == index
    assert f"index {index}" in str(error.value)


def test_tiles_compose_mode_by_mode() -> None:
    a = parse_layout("(8,16,5):(16,1,128)")
    assert str(composition(a, parse_term("[4:1;(2,2):(1,4)]"))) == "(4,(2,2),5):(16,(1,4),128)"
    assert str(composition(a, (4, parse_layout("2:8")))) == "(4,2,5):(16,8,128)"
    assert str(composition(a, parse_term("[_;4:2;_]"))) == "(8,4,5):(16,2,128)"
    assert composition(a, parse_term("_")) == a
    assert str(composition(parse_layout("(4,2):(2,1)"), 8)) == "(4,2):(2,1)"
    with pytest.raises(CompositionError, match="modes"):
        composition(a, (1, 1, 1, 1))


def test_swizzles_stay_outside() -> None:
    swizzled = parse_layout("S<3,4,3> o 0 o (8,128):(128,1)")
    result = composition(swizzled, parse_layout("(8,4):(1,8)"))
    assert str(result) == "S<3,4,3> o 0 o (8,4):(128,1)"
    assert [result(index) for index in range(32)] == [swizzled(8 * (index // 8) + index % 8) for index in range(32)]
    swizzle = parse_term("S<3,4,3>")
    assert str(composition(swizzle, parse_layout("8:16"))) == "S<3,4,3> o 0 o 8:16"
    by_definition = composition(parse_layout("(16,64):(64,1)"), parse_layout("S<2,1,3> o 0 o 64:1"))
    assert isinstance(by_definition, ComposedLayout)
    with pytest.raises(CompositionError, match="tile"):
        composition(swizzle, (4, 4))


def test_offsets_below_zero_are_refused() -> None:
    with pytest.raises(CompositionError, match="is negative"):
        composition(parse_layout("8:1"), parse_layout("4:-1"))


def test_dynamic_layouts_need_values() -> None:
    with pytest.raises(DynamicLayoutError):
        composition(parse_layout("(?,8):(8,1)"), parse_layout("(4,2):(1,4)"))


def test_a_large_composition_is_checked_whole() -> None:
    a, b = parse_layout("(512,64):(64,1)"), parse_layout("(64,512):(512,1)")
    assert str(composition(a, b)) == "(64,512):(1,64)"


@given(strategies.layouts(max_size=128))
def test_fit_finds_the_layout_of_its_values(layout: Layout) -> None:
    found = fit(values(layout))
    assert isinstance(found, Layout)
    assert values(found) == tuple(values(layout))


@given(strategies.layouts(max_size=128).filter(lambda layout: size(layout) > 2))
def test_fit_refuses_values_that_no_layout_has(layout: Layout) -> None:
    wanted = list(values(layout))
    wanted[-1] += 1000
    found = fit(wanted)
    if isinstance(found, Layout):  # the last value alone may be a mode of its own
        assert values(found) == tuple(wanted)
    else:
        assert 0 < found < len(wanted)
        assert not layout_values(wanted)
