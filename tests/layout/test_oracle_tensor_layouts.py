"""Against tensor-layouts, an independent implementation of the algebra (it has neither scaled bases nor '?')."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import coalesce, cosize, size
from pytest_nvfp4.layout.compose import composition
from pytest_nvfp4.layout.divide import complement, logical_divide, right_inverse, zipped_divide
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.sameness import SamenessLevel, compare, first_difference
from pytest_nvfp4.layout.signals import injective
from pytest_nvfp4.layout.warp import addresses_at, bank_conflicts, coalescing

oracle = pytest.importorskip("tensor_layouts")
analysis = pytest.importorskip("tensor_layouts.analysis")

SAME = {SamenessLevel.IDENTICAL, SamenessLevel.RENESTED, SamenessLevel.SAME_FUNCTION}
SMALL = strategies.layouts(max_size=64)


def theirs(layout: Layout | ComposedLayout) -> Any:
    if isinstance(layout, Layout):
        return oracle.Layout(layout.shape, layout.stride)
    assert isinstance(layout.inner, Swizzle)
    swizzle = oracle.Swizzle(layout.inner.bits, layout.inner.base, layout.inner.shift)
    return oracle.ComposedLayout(swizzle, theirs(layout.outer), offset=layout.offset)


def their_values(layout: Any) -> list[int]:
    return [layout(index) for index in range(oracle.size(layout))]


@given(SMALL)
def test_values_size_and_cosize(layout: Layout) -> None:
    other = theirs(layout)
    assert their_values(other) == list(values(layout))
    assert (oracle.size(other), oracle.cosize(other)) == (size(layout), cosize(layout))


@given(strategies.composed_layouts(max_size=64).filter(lambda layout: layout.inner.shift > 0))
def test_swizzled_values(layout: ComposedLayout) -> None:
    assert their_values(theirs(layout)) == list(values(layout))


@given(SMALL)
def test_coalesce(layout: Layout) -> None:
    assert analysis.functionally_equal(oracle.coalesce(theirs(layout)), theirs(coalesce(layout)))


@given(SMALL, st.one_of(SMALL, st.none()), st.data())
def test_sameness(a: Layout, b: Layout | None, data: st.DataObject) -> None:
    other = data.draw(strategies.renested(a)) if b is None else b
    equal = analysis.functionally_equal(theirs(a), theirs(other))
    assert (compare(a, other).level in SAME) == equal
    assert (first_difference(a, other) is None) == equal


@given(SMALL)
def test_injective(layout: Layout) -> None:
    assert injective(layout).value == analysis.is_injective(theirs(layout))


@given(strategies.layouts(max_size=64), strategies.layouts(max_size=32))
def test_composition_is_never_less_than_theirs(a: Layout, b: Layout) -> None:
    truth = [a(b(index)) for index in range(size(b))]
    try:
        found = their_values(oracle.compose(theirs(a), theirs(b)))
    except ValueError:
        return
    if found == truth:  # theirs is not checked, and not always right
        assert list(values(composition(a, b))) == truth


@given(strategies.compact_layouts(max_size=64), st.sampled_from([64, 128, 256]))
def test_complement(layout: Layout, bound: int) -> None:
    assert list(values(complement(layout, bound))) == their_values(oracle.complement(theirs(layout), bound))


@given(strategies.compact_layouts(max_size=64))
def test_right_inverse(layout: Layout) -> None:
    assert list(values(right_inverse(layout))) == their_values(oracle.right_inverse(theirs(layout)))


@given(st.permutations([1, 8]), st.sampled_from([(2, 2), (4, 2), (8, 4), (1, 8)]))
def test_division_by_a_tile(order: list[int], tile: tuple[int, int]) -> None:
    layout = Layout((8, 8), tuple(order))
    other = theirs(layout)
    assert list(values(logical_divide(layout, tile))) == their_values(oracle.logical_divide(other, tile))
    assert list(values(zipped_divide(layout, tile))) == their_values(oracle.zipped_divide(other, tile))


@given(st.sampled_from([1, 2, 4, 5, 8, 16, 32, 33, 64]), st.sampled_from([1, 2, 4]))
def test_bank_conflicts(stride: int, width: int) -> None:
    lanes = Layout(32, stride)
    ours = bank_conflicts(addresses_at(lanes, range(32), bits=8 * width), width=width)
    assert ours.ways == analysis.bank_conflicts(theirs(lanes), element_bytes=width)["max_ways"]


@given(
    strategies.swizzles(max_bits=3, max_base=4).filter(lambda swizzle: swizzle.shift > 0),
    st.sampled_from([4, 32, 64, 128]),
)
def test_bank_conflicts_behind_a_swizzle_of_bytes(swizzle: Swizzle, pitch: int) -> None:
    """Elements of one byte: there the swizzle of a pointer and of a layout are the same thing."""
    memref = f'!cute.memref<i8, smem, align<128>, {swizzle}, "(32,4):({pitch},1)">'
    in_layout = theirs(ComposedLayout(swizzle, 0, Layout(32, pitch)))
    ours = bank_conflicts(addresses_at(memref, [(lane, 0) for lane in range(32)]), width=1)
    assert ours.ways == analysis.bank_conflicts(in_layout, element_bytes=1)["max_ways"]


@given(st.sampled_from([16, 32, 64, 128, 144, 256]))
def test_a_quarter_warp_at_a_time(pitch: int) -> None:
    rows = Layout((8, 16), (pitch, 1))
    ours = bank_conflicts([pitch * row for row in range(8)], width=16)
    assert ours.ways == analysis.bank_conflicts(theirs(rows), element_bytes=1, group_size=8)["max_ways"]


@given(st.sampled_from([0, 1, 2, 3, 8, 16, 33, 64, 4096]), st.sampled_from([1, 2, 4, 8, 16]))
def test_coalescing(stride: int, width: int) -> None:
    lanes = Layout(32, stride)
    ours = coalescing(addresses_at(lanes, range(32), bits=8 * width), width=width)
    found = analysis.coalescing_efficiency(theirs(lanes), element_bytes=width)
    assert ours.lines == found["transactions"]
    assert ours.line_efficiency == pytest.approx(found["efficiency"])
    sectors = analysis.coalescing_efficiency(theirs(lanes), element_bytes=width, cache_line_bytes=32)
    assert (ours.sectors, ours.sector_efficiency) == (sectors["transactions"], pytest.approx(sectors["efficiency"]))


def test_the_oracle_can_tell_us_wrong() -> None:
    """Negative control: a wrong answer of ours would not pass these comparisons."""
    wrong = oracle.Layout((4, 8), (8, 2))
    assert not analysis.functionally_equal(theirs(Layout((4, 8), (8, 1))), wrong)
    assert analysis.bank_conflicts(oracle.Layout(32, 2), element_bytes=4)["max_ways"] != 1
    with pytest.raises(LayoutError):
        composition(Layout((2, 3, 2), (1, 4, 2)), Layout((4, 2), (1, 4)))
