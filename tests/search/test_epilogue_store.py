"""Epilogue ways: lanes and registers as the simulator's tcgen05.ld has them, and counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.warp import bank_conflicts, coalescing
from pytest_nvfp4.search.epilogue_fragments import Fragment, fragments
from pytest_nvfp4.search.epilogue_store import (
    STORE_BYTES,
    Counts,
    EpilogueError,
    EpilogueTile,
    Way,
    _requests,
    buffers,
    rank,
    ways,
)
from pytest_nvfp4.sim.memory.pattern import pattern_of
from pytest_nvfp4.sim.tcgen05.loadstore import movement

TILE = EpilogueTile(128)


def named(found: list[Way], name: str) -> Way:
    (way,) = [way for way in found if way.name == name]
    return way


@pytest.mark.parametrize("columns", [8, 16, 64, 128])
def test_lanes_hold_what_the_simulators_load_gives_them(columns: int) -> None:
    for fragment in fragments(columns):
        shape, _, repeat = fragment.load.partition(".x")
        move = movement(shape, int(repeat))
        assert move.registers == fragment.registers
        halves = (0,) if move.rows == 32 else (0, 16)
        for lane in range(32):
            expected = {
                (int(move.lanes[register, lane]) + half, int(move.columns[register, lane]))
                for register in range(move.registers)
                for half in halves
            }
            own = fragment.elements(lane)
            assert set(own) == expected
            assert len(own) == len(expected)


def test_values_that_are_called_contiguous_are() -> None:
    for columns in (8, 32, 128):
        for fragment in fragments(columns):
            for lane in (0, 5, 31):
                own = fragment.elements(lane)
                for at in range(0, len(own), fragment.contiguous):
                    row, column = own[at]
                    assert own[at : at + fragment.contiguous] == [
                        (row, column + step) for step in range(fragment.contiguous)
                    ]


@pytest.mark.parametrize("threads", [128, 256])
def test_each_layout_gives_every_element_to_one_thread(threads: int) -> None:
    tile = EpilogueTile(128, threads)
    seen = set()
    for way in ways(tile):
        layout = way.thread_value
        assert layout is not None
        if str(layout) in seen:
            continue
        seen.add(str(layout))
        assert isinstance(layout.shape, tuple)
        assert tree_size(layout.shape[0]) == threads
        columns = {part * tile.columns + at for part in range(tile.parts) for at in range(way.columns)}
        assert sorted(values(layout)) == sorted(row + 128 * column for row in range(128) for column in columns)


def test_a_row_for_each_lane_with_16_bytes_moves_twice_what_it_stores() -> None:
    # A request: 32 lanes, 32 rows, 16 bytes each: 32 sectors of 32 bytes for 512 bytes, each in a line of its own.
    way = named(ways(EpilogueTile(8)), "32x32b.x8 -> 16 B stores")
    assert way.store == Counts(requests=1, units=32, ideal=16, lines=32, ideal_lines=4)
    assert (way.sectors_a_request, way.store.efficiency, way.line_efficiency) == (32, 0.5, 0.125)
    assert way.registers == 8 + 4


def test_32_bytes_a_lane_fill_their_sectors() -> None:
    way = named(ways(TILE), "32x32b.x16 -> 32 B stores")
    assert way.store.efficiency == 1
    assert way.line_efficiency == 0.25
    assert way.shared is None


def test_the_swizzle_of_a_row_of_128_bytes_removes_the_conflicts() -> None:
    found = ways(TILE)
    plain = named(found, "32x32b.x64 -> 16 B stores, no swizzle -> TMA")
    swizzled = named(found, "32x32b.x64 -> 16 B stores, S<3,4,3> -> TMA")
    assert plain.shared is not None
    assert swizzled.shared is not None
    # 8 lanes of a pass, each at the same 16 bytes of a row of 128: 8 ways; 2 subtiles x 8 stores x 4 passes.
    assert (plain.shared.ideal, plain.shared.units) == (64, 512)
    assert swizzled.conflicts == 0
    assert plain.conflicts == 448
    padded = named(found, "32x32b.x64 -> 16 B stores, rows of 144 B -> 16 B loads and stores")
    assert padded.conflicts == 0


def test_tma_and_coalesced_stores_write_whole_lines_from_rows_of_128_bytes() -> None:
    found = ways(TILE)
    tma = named(found, "32x32b.x64 -> 16 B stores, S<3,4,3> -> TMA")
    staged = named(found, "32x32b.x64 -> 16 B stores, S<3,4,3> -> 16 B loads and stores")
    for way in (tma, staged):
        # A warp's 32 rows of 256 bytes.
        assert (way.store.units, way.store.ideal) == (256, 256)
        assert (way.store.lines, way.store.ideal_lines) == (64, 64)
    assert staged.store.requests == 16
    narrow = named(found, "32x32b.x8 -> 16 B stores, no swizzle -> TMA")
    assert narrow.store.efficiency == 0.5, "rows of 16 bytes are half a sector"


def test_the_ranking_is_by_what_it_says() -> None:
    found = ways(TILE)
    assert found == rank(reversed(found))  # type: ignore[arg-type]
    efficiencies = [way.store.efficiency for way in found]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert found[0].path == "TMA"
    assert found[0].conflicts == 0
    assert found[-1].store.efficiency < 0.2
    assert len({way.name for way in found}) == len(found)


def test_more_threads_halve_the_columns_of_each() -> None:
    one, two = (named(ways(EpilogueTile(128, threads)), "32x32b.x8 -> 16 B stores") for threads in (128, 256))
    assert one.store.requests == 2 * two.store.requests


@pytest.mark.parametrize("arguments", [(128, 64), (4,), (100,), (1024,), (8, 256), (128, 128, 12)])
def test_tiles_that_no_way_fits_are_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(EpilogueError):
        EpilogueTile(*arguments)


@pytest.mark.parametrize("columns", [8, 32, 128])
def test_sectors_and_passes_are_those_that_the_simulator_counts(columns: int) -> None:
    """Every request of every fragment, by the simulator's own counting of the same addresses."""
    looked = 0
    for fragment in fragments(columns):
        width = next(width for width in STORE_BYTES if width <= fragment.contiguous * 2)
        for request in _requests(fragment, width // 2):
            addresses = np.array([row * 4096 + column * 2 for row, column in request], np.uint64)
            low, seen = pattern_of(addresses, (1 << 32) - 1, width)
            mine = coalescing(addresses.tolist(), width=width)
            assert (mine.sectors, mine.useful_bytes) == (seen.sectors(low + seen.low), seen.bytes_touched)
            looked += 1
        inner = min(width, 16)
        for buffer in buffers(columns * 2):
            for request in _requests(fragment, inner // 2):
                places = np.array([buffer.address(row, column * 2) for row, column in request], np.uint64)
                low, seen = pattern_of(places, (1 << 32) - 1, inner)
                found = bank_conflicts(places.tolist(), width=inner)
                assert (found.wavefronts, found.ideal) == seen.wavefronts(low + seen.low)
                looked += 1
    assert looked > 20


def test_a_fragment_that_is_wrong_would_be_seen() -> None:
    """The negative control of the first test: another order of lanes is not the simulator's."""
    right = next(fragment for fragment in fragments(8) if fragment.load.startswith("16x256b"))
    wrong = Fragment(right.load, right.lanes[::-1], right.values, right.contiguous, right.registers)
    move = movement("16x256b", 1)
    assert {(int(move.lanes[at, 1]), int(move.columns[at, 1])) for at in range(4)} <= set(right.elements(1))
    assert not {(int(move.lanes[at, 1]), int(move.columns[at, 1])) for at in range(4)} <= set(wrong.elements(1))
