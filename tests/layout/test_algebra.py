"""Coordinates, measures and regrouping."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout import algebra, coordinates
from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import offset_array, swizzle_array, values, values_through
from pytest_nvfp4.layout.tree import leaves


@given(strategies.shapes())
def test_coordinates_come_first_mode_fastest(shape) -> None:
    flat = leaves(shape)
    expected = [tuple(reversed(place)) for place in itertools.product(*(range(count) for count in reversed(flat)))]
    assert [leaves(coordinates.idx2crd(index, shape)) for index in range(len(expected))] == expected


@given(strategies.shapes())
def test_crd2idx_undoes_idx2crd(shape) -> None:
    for index in range(algebra.size(algebra.make_layout(shape))):
        assert coordinates.crd2idx(coordinates.idx2crd(index, shape), shape) == index


@given(strategies.layouts())
def test_a_coordinate_and_its_index_have_one_offset(layout: Layout) -> None:
    for index in range(algebra.size(layout)):
        assert layout(index) == layout(coordinates.idx2crd(index, layout.shape))


@given(strategies.layouts())
def test_values_list_the_function(layout: Layout) -> None:
    expected = [layout(index) for index in range(algebra.size(layout))]
    assert list(values(layout)) == expected
    assert offset_array(layout).tolist() == expected
    assert algebra.cosize(layout) == max(expected) + 1


@given(strategies.composed_layouts())
def test_values_list_a_swizzled_function(layout: ComposedLayout) -> None:
    expected = [layout.inner(layout.offset + layout.outer(index)) for index in range(algebra.size(layout))]
    assert list(values(layout)) == expected == [layout(index) for index in range(len(expected))]
    assert offset_array(layout).tolist() == expected
    assert algebra.cosize(layout) == max(expected) + 1


@given(strategies.swizzles(), st.integers(0, 1 << 20))
def test_a_swizzle_is_a_bijection_that_moves_only_its_bits(swizzle: Swizzle, offset: int) -> None:
    moved = swizzle(offset)
    assert swizzle(moved) == offset  # target and source bits are apart, so it undoes itself
    target = swizzle.base + max(0, -swizzle.shift)
    assert (moved ^ offset) & ~(((1 << swizzle.bits) - 1) << target) == 0
    import numpy as np

    assert swizzle_array(swizzle, np.array([offset]))[0] == moved


def test_swizzle_128_bytes() -> None:
    """The pattern of PTX ISA, tensor memory access, 128B swizzle: chunk c of 16 bytes in row r goes to c ^ (r % 8)."""
    swizzle = Swizzle(3, 4, 3)
    for row, chunk in itertools.product(range(16), range(8)):
        assert swizzle(128 * row + 16 * chunk) == 128 * row + 16 * (chunk ^ (row % 8))


def test_an_index_past_the_end_goes_on_in_the_last_mode() -> None:
    assert [parse_layout("(4,2):(1,10)")(index) for index in (7, 8, 12)] == [13, 20, 30]


@pytest.mark.parametrize(
    ("text", "coord", "value"),
    [
        ("(4,(2,3)):(1,(4,100))", (3, (1, 2)), 207),
        ("(4,(2,3)):(1,(4,100))", (3, 5), 207),
        ("(8,8):(1@0,1@1)", (3, 5), (3, 5)),
        ("((32,4),(16,4)):((8@0,2@0),(0,1/2@0))", ((1, 1), (9, 3)), parse_layout("2:23/2@0")(1)),
        ("(4,(2,2)):(1@0,(1@0@1,1@1@1))", (3, (1, 0)), (3, (1, 0))),
        ("(0,4) o (8,8):(1@0,1@1)", (3, 5), (3, 9)),
        ("(4,8):(8,1) o (1,2) o (2,2):(1@0,1@1)", (1, 1), 19),
        ("S<3,4,3> o 0 o (8,128):(128,1)", (3, 17), 3 * 128 + 16 * (1 ^ 3) + 1),
        ("(?,4):(?,1)", (0, 3), 3),
        ("(4,?):(1,?)", (2, 0), 2),
    ],
)
def test_values_at_coordinates(text, coord, value) -> None:
    assert parse_layout(text)(coord) == value


@pytest.mark.parametrize(("text", "coord"), [("(?,4):(?,1)", (1, 0)), ("(?,4):(1,?)", 5), ("(0,?) o 4:1@0", 0)])
def test_a_question_mark_where_a_value_is_needed(text, coord) -> None:
    with pytest.raises(DynamicLayoutError, match=r"\?"):
        parse_layout(text)(coord)


@pytest.mark.parametrize("measure", [algebra.size, algebra.cosize])
def test_measures_need_values(measure) -> None:
    with pytest.raises(DynamicLayoutError):
        measure(parse_layout("(4,?):(1,4)"))


def test_a_coordinate_must_fit() -> None:
    with pytest.raises(LayoutError, match="does not fit"):
        parse_layout("(4,8):(1,4)")((1, 2, 3))


@pytest.mark.parametrize(
    ("text", "size", "cosize", "rank", "depth"),
    [("4:2", 4, 7, 1, 0), ("(4,8):(8,1)", 32, 32, 2, 1), ("((2,2),(3,(5,1))):((1,2),(4,(12,0)))", 60, 60, 2, 3),
     ("(65,64):(1,65)", 4160, 4160, 2, 1), ("():()", 1, 1, 0, 1), ("(4,2):(-1,4)", 8, 8, 2, 1)],
)  # fmt: skip
def test_measures(text, size, cosize, rank, depth) -> None:
    layout = parse_layout(text)
    found = (algebra.size(layout), algebra.cosize(layout), algebra.rank(layout), algebra.depth(layout))
    assert found == (size, cosize, rank, depth)


def test_cosize_of_coordinates_is_refused() -> None:
    with pytest.raises(LayoutError):
        algebra.cosize(parse_layout("(8,8):(1@0,1@1)"))


@given(strategies.layouts())
def test_flatten_and_modes_keep_the_function(layout: Layout) -> None:
    assert values(algebra.flatten(layout)) == values(layout)
    assert values(algebra.concat(algebra.modes(layout))) == values(layout)


@given(strategies.layouts())
def test_coalescing_by_mode_keeps_the_modes(layout: Layout) -> None:
    profile = (1,) * algebra.rank(layout)
    layout = layout if isinstance(layout.shape, tuple) else algebra.concat([layout])
    by_mode = algebra.coalesce(layout, profile)
    for before, after in zip(algebra.modes(layout), algebra.modes(by_mode), strict=True):
        assert values(before) == values(after)
        assert algebra.depth(after) <= 1


def test_coalescing_by_a_nested_profile() -> None:
    layout = parse_layout("((2,2),((2,2),3),5):((1,2),((4,8),16),48)")
    assert str(algebra.coalesce(layout, (1, (1, 1)))) == "(4,(4,3),5):(1,(4,16),48)"
    with pytest.raises(LayoutError, match="profile"):
        algebra.coalesce(layout, (1, 1, 1, 1))


def test_binding_numbers_to_question_marks() -> None:
    layout = parse_layout("(?,?{div=32}):(?{div=32},1)")
    assert str(algebra.bind(layout, [100, 64, 64])) == "(100,64):(64,1)"
    assert str(algebra.bind(parse_layout("4:?@1"), [3])) == "4:3@1"
    for numbers, problem in ([100, 65, 64], "not a multiple"), ([100, 64], "too few"), ([1, 32, 32, 5], "too many"):
        with pytest.raises(LayoutError, match=problem):
            algebra.bind(layout, numbers)


def test_enumeration_is_bounded() -> None:
    with pytest.raises(LayoutError, match="use a tile"):
        values(parse_layout("(4096,4096):(4096,1)"))


@given(strategies.layouts(max_size=64), strategies.layouts(max_size=64))
def test_values_through_another_layout(a: Layout, b: Layout) -> None:
    expected = [a(b(index)) for index in range(algebra.size(b))]
    assert list(values_through(a, b)) == expected
