"""Costs of a warp's requests: pinned by hand, and against a count by another route."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.layout.warp import addresses_at, bank_conflicts, coalescing, warp_requests

STAGED_A = '!cute.memref<f4E2M1FN, smem, align<128>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">'
UNSWIZZLED = STAGED_A.replace(" S<3,4,3>,", "")
EIGHT_ROWS = [((row, 0), 0, 0, 0) for row in range(8)]


def test_eight_rows_of_fp4_are_free_of_conflicts_in_bytes() -> None:
    addresses = addresses_at(STAGED_A, EIGHT_ROWS)
    assert addresses == tuple(128 * row + 16 * row for row in range(8))
    assert bank_conflicts(addresses, width=16).ways == 1


def test_without_the_swizzle_they_conflict_eight_ways() -> None:
    found = bank_conflicts(addresses_at(UNSWIZZLED, EIGHT_ROWS), width=16)
    assert (found.ways, found.wavefronts, found.ideal, found.method) == (8, 8, 1, "enumerated")


def test_a_swizzle_of_elements_would_be_miscounted() -> None:
    """Negative control: the same swizzle applied to element offsets gives another, wrong, number."""
    wrong = [offset // 2 for offset in addresses_at("S<3,4,3> o 0 o 8:256", range(8), bits=8)]
    assert bank_conflicts([at - at % 16 for at in wrong], width=16).ways == 2


@pytest.mark.parametrize(
    ("stride", "width", "ways", "wavefronts", "ideal"),
    [
        (4, 4, 1, 1, 1),
        (8, 4, 2, 2, 1),
        (128, 4, 32, 32, 1),
        (132, 4, 1, 1, 1),
        (2, 2, 1, 1, 1),
        (64, 2, 16, 16, 1),
        (0, 4, 1, 1, 1),
        (8, 8, 1, 2, 2),
        (16, 8, 2, 4, 2),
        (16, 16, 1, 4, 4),
        (128, 16, 8, 32, 4),
        (144, 16, 1, 4, 4),
    ],
)
def test_strided_lanes(stride: int, width: int, ways: int, wavefronts: int, ideal: int) -> None:
    found = bank_conflicts([stride * lane for lane in range(32)], width=width)
    assert (found.ways, found.wavefronts, found.ideal) == (ways, wavefronts, ideal)


@given(st.lists(st.integers(0, 255), min_size=32, max_size=32), st.sampled_from([1, 2, 4, 8, 16]))
def test_ways_by_another_route(places: list[int], width: int) -> None:
    addresses = [place * width for place in places]
    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    ways = []
    for start in range(0, 32, lanes):
        touched = {byte for at in addresses[start : start + lanes] for byte in range(at, at + width)}
        ways.append(max(len({byte // 128 for byte in touched if byte // 4 % 32 == bank}) for bank in range(32)))
    found = bank_conflicts(addresses, width=width)
    assert (found.ways, found.wavefronts, found.ideal) == (max(ways), sum(ways), 32 // lanes)


@given(st.lists(st.integers(0, 1 << 16), min_size=1, max_size=32), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_sectors_by_another_route(places: list[int], width: int) -> None:
    found = coalescing([place * width for place in places], width=width)
    touched = {byte for place in places for byte in range(place * width, (place + 1) * width)}
    assert found.useful_bytes == len(touched)
    assert found.sectors == len({byte // 32 for byte in touched})
    assert found.lines == len({byte // 128 for byte in touched})
    assert 0 < found.line_efficiency <= found.sector_efficiency <= 1


def test_lane_to_row_with_16_bit_stores() -> None:
    """The template's epilogue: every lane its own row of C, so 32 transactions a warp, at 1.6 % of the lines moved."""
    requests = warp_requests("(32,128):(4096,1)", bits=16)
    assert len(requests) == 128
    found = coalescing(requests[0], width=2)
    assert (found.sectors, found.lines, found.useful_bytes) == (32, 32, 64)
    assert found.line_efficiency == pytest.approx(0.0156, abs=1e-4)


def test_lane_to_column_is_coalesced() -> None:
    found = coalescing(warp_requests("(32,128):(1,4096)", bits=16)[5], width=2)
    assert (found.sectors, found.lines, found.sector_efficiency) == (2, 1, 1.0)


def test_vectors_of_values_make_one_request() -> None:
    requests = warp_requests("(32,128):(4096,1)", bits=16, vector=8)
    assert len(requests) == 16
    assert coalescing(requests[1], width=16).line_efficiency == 0.125
    assert requests[1][:2] == (16, 8208)


def test_the_second_warp_and_fp4() -> None:
    assert warp_requests("(64,8):(8,1)", bits=4, vector=8, warp=1)[0][:3] == (128, 132, 136)
    assert len(warp_requests("(40,8):(8,1)", bits=4, vector=8, warp=1)[0]) == 8


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"value": "(32,4):(1,32)", "vector": 2, "bits": 16}, "not contiguous"),
        ({"value": "(32,4):(4,1)", "vector": 3, "bits": 16}, "does not divide"),
        ({"value": "(32,4):(4,1)", "warp": 1, "bits": 16}, "no warp 1"),
        ({"value": "(32,4):(4,1)"}, "bits="),
        ({"value": "32:4", "bits": 16}, "threads in mode 0"),
        ({"value": "(32,4):(1,32)", "bits": 4}, "begins at bit 4"),
        ({"value": "(32,4):(1@0,1@1)", "bits": 16}, "not at a memory offset"),
    ],
)
def test_requests_that_are_none(arguments: dict, problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        warp_requests(**arguments)


def test_a_dynamic_pitch_needs_a_number() -> None:
    with pytest.raises(DynamicLayoutError):
        warp_requests("(32,4):(?,1)", bits=16)
    with pytest.raises(LayoutError, match="no addresses"):
        addresses_at("!cute.ptr<f16, smem>", [0])


@pytest.mark.parametrize(
    ("addresses", "width", "problem"),
    [
        ([0], 3, "power of two"),
        ([0], 32, "power of two"),
        ([2], 4, "faults"),
        ([], 4, "1 to 32"),
        ([0] * 33, 4, "1 to"),
    ],
)
def test_requests_that_the_hardware_has_not(addresses: list[int], width: int, problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        bank_conflicts(addresses, width=width)


def test_layout_objects_work_too() -> None:
    assert addresses_at(parse_layout("(4,2):(2,1)"), [(1, 1), 7], bits=16) == (6, 14)
