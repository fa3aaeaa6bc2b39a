"""Complement, inverses, division and product, by the laws that define them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import cosize, make_layout, modes, rank, size
from pytest_nvfp4.layout.canonical import coalesced_modes
from pytest_nvfp4.layout.divide import (
    complement,
    left_inverse,
    logical_divide,
    logical_product,
    right_inverse,
    zipped_divide,
)
from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.grammar import parse_layout, parse_term
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import values


@given(strategies.layouts(max_size=64), st.integers(1, 200))
def test_a_complement_fills_the_gaps_once(layout: Layout, bound: int) -> None:
    try:
        rest = complement(layout, bound)
    except LayoutError:
        return
    image, others = set(values(layout)), list(values(rest))
    assert others == sorted(others)
    both = [a + b for b in others for a in image]
    assert len(set(both)) == len(both)  # disjoint copies
    assert set(both) >= set(range(bound))
    assert set(both) == set(range(len(both)))


@given(strategies.compact_layouts(max_size=64), st.integers(1, 5))
def test_the_complement_of_a_compact_layout_is_the_rest(layout: Layout, times: int) -> None:
    count = size(layout)
    assert values(complement(layout, count * times)) == tuple(range(0, count * times, count))


@pytest.mark.parametrize("text", ["(4,2):(1,2)", "(4,3):(3,7)", "8:-1", "(2,2):(1,1)"])
def test_what_has_no_complement(text: str) -> None:
    """CuTe DSL 4.8.1 answers (3,0,5):(1,12,21) for (4,3):(3,7)."""
    with pytest.raises(LayoutError, match="no complement"):
        complement(parse_layout(text), 100)


@pytest.mark.parametrize(
    ("text", "bound", "result"),
    [("4:1", 24, "6:4"), ("6:4", 24, "4:1"), ("(4,6):(1,4)", 24, "1:0"), ("4:2", 24, "(2,3):(1,8)"),
     ("(2,4):(1,6)", 24, "3:2"), ("(2,2):(1,6)", 24, "(3,2):(2,12)"), ("(4,2):(0,1)", 8, "4:2"), ("4:2", None, "2:1")],
)  # fmt: skip
def test_complements(text: str, bound: int | None, result: str) -> None:
    assert str(complement(parse_layout(text), bound)) == result


@given(strategies.layouts(max_size=64))
def test_the_right_inverse_law(layout: Layout) -> None:
    inverse = right_inverse(layout)
    assert [layout(inverse(index)) for index in range(size(inverse))] == list(range(size(inverse)))


@given(strategies.compact_layouts(max_size=64))
def test_inverses_of_a_bijection_invert_it_whole(layout: Layout) -> None:
    for inverse in (right_inverse(layout), left_inverse(layout)):
        assert size(inverse) == size(layout)
        assert [inverse(layout(index)) for index in range(size(layout))] == list(range(size(layout)))


@given(strategies.layouts(max_size=64))
def test_the_left_inverse_law(layout: Layout) -> None:
    try:
        inverse = left_inverse(layout)
    except LayoutError:
        return
    assert [inverse(layout(index)) for index in range(size(layout))] == list(range(size(layout)))


def test_inverses() -> None:
    assert str(left_inverse(parse_layout("(4,2):(1,8)"))) == "(4,2,2):(1,8,4)"
    assert str(right_inverse(parse_layout("(8,64):(64,1)"))) == "(64,8):(8,1)"
    assert str(right_inverse(parse_layout("4:2"))) == "1:0"
    for text in ("(4,2):(0,1)", "(4,2):(1,2)"):
        with pytest.raises(LayoutError):
            left_inverse(parse_layout(text))
    with pytest.raises(LayoutError):
        right_inverse(parse_layout("(8,8):(1@0,1@1)"))


@given(strategies.compact_layouts(max_size=64), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 4]))
def test_a_division_visits_every_element_once(layout: Layout, count: int, step: int) -> None:
    try:
        divided = logical_divide(layout, Layout(count, step))
    except LayoutError:
        # A tile may cut across modes or go past the end, where a last mode of size 1 takes over: no strides repeat it.
        assert len(coalesced_modes(layout)) > 1 or size(layout) % (count * step)
        return
    if size(layout) % (count * step) == 0:
        assert sorted(values(divided)) == list(range(size(layout)))
    tile = modes(divided)[0]
    assert values(tile) == tuple(layout(step * place) for place in range(count))


@pytest.mark.parametrize(
    ("layout", "tiler", "logical", "zipped"),
    [
        ("16:1", "4:2", "(4,(2,2)):(2,(1,8))", "(4,(2,2)):(2,(1,8))"),
        ("(16,32):(32,1)", "[4:1;8:1]", "((4,4),(8,4)):((32,128),(1,8))", "((4,8),(4,4)):((32,1),(128,8))"),
        ("(9,(4,8)):(59,(13,1))", "[3:3;(2,4):(1,8)]",
         "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))", "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"),
        ("(8,6,5):(1,8,48)", "[_;2:1]", "(8,(2,3),5):(1,(8,16),48)", "((8,2),(1,3,5)):((1,8),(0,16,48))"),
    ],
)  # fmt: skip
def test_divisions(layout: str, tiler: str, logical: str, zipped: str) -> None:
    assert str(logical_divide(parse_layout(layout), parse_term(tiler))) == logical
    assert str(zipped_divide(parse_layout(layout), parse_term(tiler))) == zipped


def test_division_by_a_shape() -> None:
    layout = parse_layout("(128,256):(256,1)")
    assert str(zipped_divide(layout, (64, 64))) == "((64,64),(2,4)):((256,1),(16384,64))"
    assert rank(zipped_divide(layout, parse_term("_"))) == 2
    assert str(zipped_divide(parse_layout("16:1"), 4)) == "(4,4):(1,4)"
    with pytest.raises(LayoutError, match="modes"):
        logical_divide(layout, (2, 2, 2))
    with pytest.raises(DynamicLayoutError):
        zipped_divide(parse_layout("(?,64):(64,1)"), (8, 8))


@given(strategies.compact_layouts(max_size=32), st.sampled_from(["3:1", "(2,2):(1,2)", "(2,3):(3,1)", "1:0"]))
def test_a_product_repeats_over_new_offsets(layout: Layout, tiler: str) -> None:
    product = logical_product(layout, parse_layout(tiler))
    block, copies = modes(product)
    assert block == layout
    assert size(copies) == size(parse_layout(tiler))
    assert sorted(values(product)) == list(range(size(product)))
    assert cosize(product) == size(product)


def test_products() -> None:
    assert str(logical_product(parse_layout("(2,2):(4,1)"), parse_layout("6:1"))) == "((2,2),(2,3)):((4,1),(2,8))"
    assert str(logical_product(make_layout((2, 5)), make_layout((3, 4)))) == "((2,5),(3,4)):((1,2),(10,30))"
