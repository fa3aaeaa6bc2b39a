"""Boxes of tensor maps against an oracle that goes element by element."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.shared import RESERVED, SharedMemory
from pytest_nvfp4.sim.tma.box import box_at, gather4, gathered
from pytest_nvfp4.sim.tma.tile import tile_of
from tests.sim.tma.maps import BITS, Geometry, loaded, stored
from tests.sim.tma.tile_device import MANY, SHARED, Device, coordinates_of, geometries


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_load_puts_every_element_where_the_oracle_does(data):
    geometry = data.draw(geometries())
    coordinates = coordinates_of(data.draw, geometry)
    address = RESERVED + 128 * data.draw(st.integers(0, 40))
    device = Device(geometry)
    device.load(coordinates, address)
    device.check(coordinates, address)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_store_writes_what_the_oracle_does_and_nothing_else(data):
    geometry = data.draw(geometries())
    coordinates = coordinates_of(data.draw, geometry, negative=False)
    address = RESERVED + 128 * data.draw(st.integers(0, 40))
    device = Device(geometry)
    shared = device.shared
    shared.data[:] = np.random.default_rng(1).integers(0, 256, SHARED, np.uint8)
    before = device.region.data.copy()
    lead = device.address - device.region.start
    bytes_of = {i + shared.base: int(v) for i, v in enumerate(shared.data)}
    expected = before.copy()
    expected[lead:] = stored(geometry, before[lead:], bytes_of, coordinates, address)

    tile = device.tile
    order = tile.order(address)
    box = box_at(tile, coordinates, device.memory, write=True, what="test")
    index = address - shared.base
    if box.region is not None:
        box.view()[...] = box.inside(gathered(shared.data[index : index + order.footprint], order))
    assert (device.region.data == expected).all()


@pytest.mark.parametrize("offset", [0, 128, 256, 640, 1024])
@pytest.mark.parametrize(("swizzle", "mask"), [(1, 0x10), (2, 0x30), (3, 0x70)])
def test_the_swizzle_is_that_of_the_absolute_address_as_measured(offset, swizzle, mask):
    inner = 16 << swizzle
    geometry = Geometry(ElementType.U8, (256, 64), (256,), (inner, 16), (), swizzle)
    device = Device(geometry)
    address = RESERVED + offset
    device.load((32, 3), address)
    linear = np.arange(inner * 16)
    absolute = address + linear
    places = (absolute ^ ((absolute >> 3) & mask)) - RESERVED
    rows = device.tensor[: 64 * 256].reshape(64, 256)[3:19, 32 : 32 + inner].ravel()
    assert (device.shared.data[places] == rows).all()


def test_an_xor_from_the_start_of_the_tile_would_be_seen():
    """The negative control of the test above."""
    geometry = Geometry(ElementType.U8, (256, 64), (256,), (128, 16), (), 3)
    device = Device(geometry)
    device.load((0, 0), RESERVED + 640)
    linear = np.arange(128 * 16)
    places = (linear ^ ((linear >> 3) & 0x70)) + 640
    rows = device.tensor[: 64 * 256].reshape(64, 256)[:16, :128].ravel()
    assert (device.shared.data[places] != rows).any()


def test_shared_memory_of_another_rank_has_the_same_pattern():
    geometry = Geometry(ElementType.U8, (256, 64), (256,), (128, 16), (), 3)
    device = Device(geometry)
    device.shared = SharedMemory(SHARED, rank=5)
    address = device.shared.base + 640
    device.load((0, 0), address)
    device.check((0, 0), address)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-3, 12), min_size=4, max_size=4), st.integers(-40, 140), st.integers(0, 3))
def test_gather4_is_a_box_of_four_rows(rows, first, swizzle):
    geometry = Geometry(ElementType.U8, (144, 9), (160,), ({0: 128, 1: 32, 2: 64, 3: 128}[swizzle], 1), (), swizzle)
    device = Device(geometry)
    tile = device.tile
    address = RESERVED + 384
    boxes = [box_at(tile, (first, row), device.memory, write=False, what="test") for row in rows]
    gather4(boxes, tile.order(address, four_rows=True), device.shared, 384)
    device.check((first, 0), address, rows)


@pytest.mark.parametrize("element", [ElementType.FP4_PADDED, ElementType.FP6_PADDED])
@pytest.mark.parametrize(("swizzle", "atom"), [(0, 0), (3, 0), (3, 1), (3, 3)])
@pytest.mark.parametrize("at", [(0, 0), (128, 3), (256, -2), (-128, 0)])
def test_padded_elements_take_the_first_bytes_of_each_16(element, swizzle, atom, at):
    geometry = Geometry(element, (384, 9), (384,), (128, 6), (), swizzle, atom)
    device = Device(geometry, before=64)
    address = RESERVED + 384
    device.load(at, address)
    expected = loaded(geometry, device.tensor, at, address)
    assert {place: int(device.shared.data[place - device.shared.base]) for place in expected} == expected
    assert len(expected) == 6 * 16 * BITS[element]
    assert device.tile.bytes == len(expected)
    assert device.shared.written.sum() == 6 * 128


def test_the_first_coordinate_of_padded_elements():
    device = Device(Geometry(ElementType.FP6_PADDED, (384, 9), (384,), (128, 6)))
    with pytest.raises(Fault, match="multiple of 128") as caught:
        device.load((64, 0), RESERVED)
    assert caught.value.kind == "tensor map"


def test_a_negative_coordinate_of_a_store():
    device = Device(Geometry(ElementType.U8, (128, 8), (128,), (128, 4)))
    with pytest.raises(Fault, match="must not be negative"):
        box_at(device.tile, (0, -1), device.memory, write=True, what="store")


def test_tf32_rounds_to_the_nearest_even_and_keeps_infinities():
    geometry = Geometry(ElementType.F32, (16,), (), (16,), tf32=1)
    device = Device(geometry)
    values = np.array(
        [0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0xBF801000, 0x7F7FFFFF, 0x7F800000, 0xFF800000] * 2, np.uint32
    )
    device.tensor[:64] = values.view(np.uint8)
    device.load((0,), RESERVED)
    expected = [0x3F800000, 0x3F800000, 0x3F802000, 0x3F804000, 0xBF800000, 0x7F800000, 0x7F800000, 0xFF800000]
    assert device.shared.data[:64].view(np.uint32).tolist() == expected * 2
    device.tensor[:8] = np.array([0x7F800001, 0xFFF241DC], np.uint32).view(np.uint8)
    device.load((0,), RESERVED)
    assert device.shared.data[:8].view(np.uint32).tolist() == [0x7FFFE000] * 2


def test_an_ftz_map_changes_nothing():
    device = Device(Geometry(ElementType.F32_FTZ, (4,), (), (4,)))
    device.tensor[:16] = np.array([0, 0x80000000, 0x00800000, 0x3F800000], np.uint32).view(np.uint8)
    device.load((0,), RESERVED)
    assert (device.shared.data[:16] == device.tensor[:16]).all()
    device.tensor[:4] = np.array([1], np.uint32).view(np.uint8)
    device.load((0,), RESERVED)
    assert (device.shared.data[:16] == device.tensor[:16]).all()


@pytest.mark.parametrize("element", [ElementType.F16, ElementType.BF16, ElementType.F32, ElementType.F64])
def test_the_nan_fill_is_one_pattern_in_every_sixteen_bits(element):
    device = Device(Geometry(element, (64,), (), (64,), fill=1))
    device.load((0,), RESERVED)
    device.check((0,), RESERVED)
    device.load((40,), RESERVED)
    size = 24 * device.geometry.bits // 8
    assert (device.shared.data[:size] == device.tensor[40 * device.geometry.bits // 8 :][:size]).all()
    assert (device.shared.data[size : device.geometry.bytes].view(np.uint16) == 0x7FF7).all()


@pytest.mark.parametrize("swizzle", [1, 2, 3])
def test_a_row_narrower_than_the_swizzle_begins_a_span_of_its_own(swizzle):
    geometry = Geometry(ElementType.F16, (64, 16), (128,), (8, 16), swizzle=swizzle)
    device = Device(geometry)
    before = device.shared.data[: 16 * (16 << swizzle)].copy()
    device.load((0, 0), RESERVED)
    device.check((0, 0), RESERVED)
    changed = (device.shared.data[: before.size] != before).reshape(-1, 16).any(axis=1)
    assert changed.sum() == 16
    assert [unit // (1 << swizzle) for unit in np.flatnonzero(changed)] == list(range(16))


def test_a_map_that_describes_too_much_is_a_fault_that_names_the_tensor():
    geometry = Geometry(ElementType.U8, (128, 8), (128,), (128, 4))
    device = Device(geometry)
    wrong = Geometry(ElementType.U8, (128, 16), (128,), (128, 4))
    tile = tile_of(wrong.encode(device.address), what="load")
    box_at(tile, (0, 4), device.memory, write=False, what="load")
    with pytest.raises(Fault, match="nearest tensor: X at byte") as caught:
        box_at(tile, (0, 8), device.memory, write=False, what="load")
    assert caught.value.kind == "tensor map"
    # Outside the tensor as the map has it: zeros, no fault.
    assert box_at(tile, (0, 16), device.memory, write=False, what="load").region is None


def test_only_the_bytes_of_the_box_must_have_been_written():
    device = Device(Geometry(ElementType.U8, (256, 8), (256,), (128, 4)))
    device.region.initialised = np.zeros(device.region.size, np.bool_)
    lead = device.address - device.region.start
    known = device.region.initialised[lead : lead + 2048].reshape(8, 256)
    known[:4, :128] = True
    known[2, 77] = False
    for row, missing in {-2: None, 0: 2 * 256 + 77, 3: 4 * 256}.items():
        fault = box_at(device.tile, (0, row), device.memory, write=False, what="load").unwritten("load")
        assert (fault is None) == (missing is None)
        assert fault is None or f"X at byte {lead + missing}, which was never written" in fault.message


def test_a_read_only_tensor_is_not_stored_to():
    device = Device(Geometry(ElementType.U8, (128,), (), (128,)))
    device.region.writable = False
    with pytest.raises(Fault) as caught:
        box_at(device.tile, (0,), device.memory, write=True, what="store")
    assert caught.value.kind == "read-only"


@pytest.mark.parametrize(
    ("geometry", "kind", "words"),
    [
        (Geometry(0, (128,), (), (64,), interleave=1), "tensor map", "rank 3"),
        (Geometry(0, (32, 4, 4), (32, 128), (32, 1, 1), interleave=1), "unsupported", "interleaved"),
        (Geometry(0, (128,), (), (64,), steps=(2,)), "tensor map", "element stride 2 in dimension 0"),
        (Geometry(0, (128,), (), (64,), swizzle=3, atom=2), "unsupported", "B32_FLIP_8B"),
        (Geometry(0, (128,), (), (32,), swizzle=1, atom=1), "tensor map", "only the 128-byte"),
        (Geometry(0, (128,), (), (64,), swizzle=1), "tensor map", "wider than the 32-byte"),
        (Geometry(0, (128,), (), (24,)), "tensor map", "not a multiple of 16"),
        (Geometry(11, (129,), (), (64,)), "tensor map", "must be even"),
        (Geometry(12, (256,), (), (64,)), "tensor map", "must be 128"),
        (Geometry(12, (192,), (), (128,)), "tensor map", "multiple of 128"),
        (Geometry(13, (256, 4), (208,), (128, 2)), "tensor map", "not a multiple of 32"),
        (Geometry(13, (256,), (), (128,), swizzle=2), "tensor map", "swizzle B64"),
        (Geometry(0, (128,), (), (64,), fill=1), "tensor map", "non-float"),
    ],
)
def test_illegal_and_unmodelled_maps(geometry, kind, words):
    with pytest.raises(Fault, match=words) as caught:
        tile_of(geometry.encode(0x7000_0000), what="load")
    assert caught.value.kind == kind


def test_garbage_is_no_map():
    with pytest.raises(Fault, match="not a valid tensor map") as caught:
        tile_of(b"\x5a" * 128, what="load")
    assert caught.value.kind == "tensor map"


def test_an_odd_first_coordinate_of_fp4_is_unsupported():
    device = Device(Geometry(ElementType.FP4_PACKED, (256, 4), (128,), (256, 4), (), 3))
    with pytest.raises(Unsupported, match="middle of a byte"):
        device.load((1, 0), RESERVED)


@pytest.mark.parametrize(("rows", "first"), [(16, 8), (5, 8), (5, 31)])
@pytest.mark.parametrize("write", [False, True])
def test_addresses_run_round_so_that_a_box_ends_with_one_of_several_sequences(rows, first, write):
    extent, row, tall = 1 << 30, 128, 1 << 34
    tensor = Device(Geometry(ElementType.U8, (row, 64), (row,), (row, 16), (), 3))
    ragged = Geometry(ElementType.U8, (row, extent, MANY, MANY), (row, tall - row, row), (row, 16, 1, 1), (), 3)
    tile = tile_of(ragged.encode(tensor.address), what="test")
    # row r of the box: r + (extent - rows) * row + extent * (tall - row) + (first + rows) * row, modulo 2**64
    box = box_at(tile, (0, extent - rows, extent, first + rows), tensor.memory, write=write, what="test")
    address = tensor.shared.base + 1024
    if write:
        kept = tensor.tensor.copy()
        view = box.view()
        view[...] = 0xEE
        changed = np.flatnonzero(kept[: 64 * row] != tensor.tensor[: 64 * row]) // row
        assert changed.min() == first
        assert changed.max() == first + rows - 1
        return
    box.load(tile.order(address), tensor.shared, address - tensor.shared.base)
    expected = loaded(tensor.geometry, tensor.tensor, (0, first), address)
    got = {place: int(tensor.shared.data[place - tensor.shared.base]) for place in expected}
    oracle = {place: value for place, value in expected.items() if (place - address) // row < rows}
    assert {place: got[place] for place in oracle} == oracle
    assert {value for place, value in got.items() if place not in oracle} <= {0}


def test_a_row_too_far_round_is_outside_of_every_tensor():
    tensor = Device(Geometry(ElementType.U8, (128, 64), (128,), (128, 16), (), 3))
    ragged = Geometry(ElementType.U8, (128, 1 << 30, MANY), (128, (1 << 33) - 128), (128, 16, 1), (), 3)
    tile = tile_of(ragged.encode(tensor.address), what="test")
    with pytest.raises(Fault, match="outside every tensor"):
        box_at(tile, (0, (1 << 30) - 5, 1 << 30), tensor.memory, write=False, what="test")
