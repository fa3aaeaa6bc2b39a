"""Stores against numpy; lanes that meet; who wrote what."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import FULL, bools
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile
from tests.sim.memory.harness import Case

LANE = np.arange(32, dtype=np.uint64)
RNG = np.random.default_rng(5)
LETTER = {8: "h", 16: "h", 32: "r", 64: "d"}


def register(bits: int) -> np.ndarray:
    return RNG.integers(0, 1 << bits, 32, dtype=np.uint64).astype(f"u{max(bits, 16) // 8}")


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("mask", [FULL, 0x7000_0F0E])
@pytest.mark.parametrize(
    ("bits", "count"), [(8, 1), (8, 4), (16, 1), (16, 2), (32, 1), (32, 2), (32, 4), (32, 8), (64, 1), (64, 2), (64, 4)]
)
@pytest.mark.parametrize("pitch", [1, 3])
def test_every_width_and_vector(space, mask, bits, count, pitch):
    if space == "shared" and bits * count > 128:
        pytest.skip("256-bit accesses are for global memory")
    case = Case()
    size = bits * count // 8
    region = case.tensor(np.zeros(4096, np.uint8))
    letter = LETTER[bits]
    values = {f"{letter}{i + 1}": register(bits) for i in range(count)}
    if count > 1:
        values[f"{letter}2"] = 5  # one register is uniform
    start = region.start if space == "global" else case.smem(np.zeros(4096, np.uint8))
    base, dtype = ("d60", np.uint64) if space == "global" else ("r60", np.uint32)
    names = "{" + ",".join("%" + n for n in values) + "}" if count > 1 else "%" + next(iter(values))
    vector = f".v{count}" if count > 1 else ""
    where = (start + LANE * size * pitch).astype(dtype)
    case.run(f"st.{space}{vector}.b{bits} [%{base}], {names};", mask=mask, **{base: where}, **values)
    columns = [
        np.broadcast_to(np.asarray(v, f"u{bits // 8}"), (32,)) if type(v) is int else v.astype(f"u{bits // 8}")
        for v in values.values()
    ]
    wanted = np.zeros(4096, np.uint8)
    rows = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8).reshape(32, size)
    for lane in range(32):
        if mask >> lane & 1:
            wanted[lane * size * pitch : lane * size * pitch + size] = rows[lane]
    data = region.data if space == "global" else case.cluster.ctas[0].shared.data
    assert (data == wanted).all()


def test_one_address_and_immediates():
    case = Case()
    region = case.tensor(np.zeros(64, np.uint8))
    case.run("st.global.b32 [%d1+8], 305419896; st.global.v2.b16 [%d1], {%h1, 3};", d1=region.start, h1=0xABCD)
    assert region.data[8:12].tolist() == [0x78, 0x56, 0x34, 0x12]
    assert region.data[:4].tolist() == [0xCD, 0xAB, 3, 0]


def test_b128():
    case = Case()
    region = case.tensor(np.zeros(1024, np.uint8))
    value = 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10
    many = np.array([value + i for i in range(32)], object)
    case.run("st.global.b128 [%d1], %q1;", d1=region.start, q1=value)
    assert region.data[:16].tobytes() == value.to_bytes(16, "little")
    case.run("st.global.b128 [%d1], %q1;", d1=region.start + 16 * LANE, q1=many)
    assert region.data[512 - 16 : 512].tobytes() == (value + 31).to_bytes(16, "little")


def test_each_store_is_a_change_that_others_may_see():
    case = Case()
    region = case.tensor(np.zeros(64, np.uint8))
    base = case.smem(np.zeros(64, np.uint8))
    before = case.machine.changes
    case.run("st.global.b32 [%d1], 1; st.shared.b32 [%r1], 1;", d1=region.start, r1=base)
    assert case.machine.changes == before + 2
    case.run("ld.global.b32 %r2, [%d1];", d1=region.start)
    assert case.machine.changes == before + 2


def test_shared_bytes_become_initialised_exactly():
    case = Case()
    base = case.cluster.ctas[0].shared.base
    case.run("st.shared.b16 [%r1], %h1;", r1=(base + 8 * LANE).astype(np.uint32), h1=7)
    written = case.cluster.ctas[0].shared.written
    assert np.flatnonzero(written).tolist() == sorted(b for i in range(32) for b in (8 * i, 8 * i + 1))


def test_generic_and_peer_addresses():
    case = Case(ctas=2)
    own, peer = case.smem(np.zeros(64, np.uint8)), case.smem(np.zeros(64, np.uint8), rank=1)
    region = case.tensor(np.zeros(256, np.uint8))
    case.run(
        "st.b32 [%d1], 1; st.b32 [%d2], 2; st.b32 [%d3], 3;",
        d1=SHARED_WINDOW + own,
        d2=region.start,
        d3=SHARED_WINDOW + peer,
    )
    assert [case.cluster.ctas[i].shared.data[0] for i in (0, 1)] == [1, 3]
    assert region.data[0] == 2
    case.run("st.shared::cluster.b32 [%r1], %r2;", r1=np.where(LANE < 3, own, peer).astype(np.uint32), r2=9)
    assert [case.cluster.ctas[i].shared.data[0] for i in (0, 1)] == [9, 9]
    with pytest.raises(Fault, match="is in CTA 1"):
        case.run("st.shared.b32 [%r1], %r2;", r1=peer, r2=9)


def test_halves_of_a_register_of_each_lane():
    case = Case()
    region = case.tensor(np.zeros(64, np.uint8))
    words = RNG.integers(0, 1 << 32, 32, dtype=np.uint32)
    halves = words.view(np.uint16)[::2]
    case.run("st.global.b16 [%d1], %h1;", d1=region.start + 2 * LANE, h1=halves)
    assert (region.data.view(np.uint16) == words & 0xFFFF).all()
    case.run(
        "st.shared.b16 [%r1], %h1;", r1=(case.smem(np.zeros(64, np.uint8)) + 2 * LANE).astype(np.uint32), h1=halves
    )
    assert (case.cluster.ctas[0].shared.data[:64].view(np.uint16) == words & 0xFFFF).all()


class TestFaults:
    def test_outside_every_tensor_is_a_finding_and_the_rest_is_stored(self):
        case = Case()
        region = case.tensor(np.zeros(256, np.uint8), "C")
        case.run("st.global.b32 [%d1], 1;", d1=region.end)
        (found,) = case.launch.findings
        assert found.kind == "out-of-bounds"
        assert re.search(r"writes 4 bytes.*0 bytes after the end of C.*dropped", found.message)
        case.run("st.global.b64 [%d1], %d2;", d1=region.start + 16 + 8 * LANE, d2=1)
        assert "2 lanes, the first of them lane 30: writes 8 bytes" in case.launch.findings[1].message
        assert region.data.view(np.uint64).tolist() == [0, 0] + 30 * [1]
        case.run("st.v2.b32 [%d1], {%r1, %r1};", d1=region.end - 8 + 8 * LANE, r1=7)
        assert region.data.view(np.uint32)[-4:].tolist() == [1, 0, 7, 7]
        with pytest.raises(Fault, match=r"lane 31.*outside every tensor"):
            case.run("red.global.add.u64 [%d1], %d2;", d1=region.start + 8 + 8 * LANE, d2=1)

    def test_far_from_every_tensor_the_hint_is_of_addresses(self):
        case = Case()
        region = case.tensor(np.zeros(256, np.uint8), "C")
        for distance, hint in ((0, "predicate that guards"), (1 << 33, "data_ptr.. of a tensor in host memory")):
            with pytest.raises(Fault) as caught:
                case.run("red.global.add.u32 [%d1], 1;", mask=1, d1=region.end + distance)
            assert re.search(hint, caught.value.hint)

    def test_bounds_alignment_and_read_only(self):
        case = Case()
        region = case.tensor(np.zeros(256, np.uint8), "C")
        with pytest.raises(Fault, match="not a multiple of 8"):
            case.run("st.global.b64 [%d1], %d2;", d1=region.start + 4, d2=1)
        region.writable = False
        for where in (region.start, region.start + 4 * LANE):
            with pytest.raises(Fault) as caught:
                case.run("st.global.b32 [%d1], 1;", d1=where)
            assert caught.value.kind == "read-only"
        assert not region.data.any()

    def test_mbarrier_bytes(self):
        case = Case()
        base = case.smem(np.zeros(256, np.uint8))
        case.cluster.ctas[0].shared.opaque[128] = (8, "the mbarrier")
        case.run("st.shared.b32 [%r1], 1;", r1=base + 124)
        with pytest.raises(Fault, match="mbarrier at byte 128"):
            case.run("st.shared.b32 [%r1], 1;", r1=base + 132)
        with pytest.raises(Fault, match="mbarrier at byte 128"):
            case.run("st.shared.b64 [%r1], %d1;", r1=(base + 8 * LANE).astype(np.uint32), d1=1)

    @pytest.mark.parametrize(
        "opcode", ["st.const.b32", "st.param.b32", "st.acquire.gpu.b32", "st.global.nc.b32", "st.global.f16"]
    )
    def test_what_is_not_a_store(self, opcode):
        with pytest.raises(Unsupported):
            Case().run(f"{opcode} [%d1], %r1;", d1=0, r1=0)


class TestLanesThatMeet:
    def test_one_address_with_different_values_is_a_race_and_the_last_lane_stays(self):
        case = Case()
        region = case.tensor(np.zeros(64, np.uint8), "C")
        case.run("st.global.b32 [%d1], %r1;", d1=region.start, r1=LANE.astype(np.uint32))
        (finding,) = case.launch.findings
        assert finding.kind == "lanes-race"
        assert "C at byte 0" in finding.message
        assert region.data[0] == 31

    def test_the_same_value_is_fine(self):
        case = Case()
        region = case.tensor(np.zeros(64, np.uint8))
        base = case.smem(np.zeros(64, np.uint8))
        same = np.full(32, 6, np.uint32)
        case.run("st.global.b32 [%d1], %r1; st.shared.b32 [%r2], %r1;", d1=region.start, r1=same, r2=base)
        case.run("st.global.b32 [%d1], %r1;", d1=region.start + 4 * (LANE % 4), r1=(LANE % 4).astype(np.uint32))
        assert not case.launch.findings

    @pytest.mark.parametrize("space", ["global", "shared"])
    def test_two_of_many_lanes(self, space):
        case = Case()
        region = case.tensor(np.zeros(256, np.uint8))
        start = region.start if space == "global" else case.smem(np.zeros(256, np.uint8))
        letter, dtype = ("d", np.uint64) if space == "global" else ("r", np.uint32)
        where = (start + 4 * LANE).astype(dtype)
        where[7] = where[21]
        case.run(f"st.{space}.b32 [%{letter}1], %r2;", **{letter + "1": where}, r2=LANE.astype(np.uint32))
        (finding,) = case.launch.findings
        assert "lanes 7 and 21" in finding.message
        case.run(
            f"st.{space}.b32 [%{letter}1], %r2;",
            mask=FULL & ~(1 << 7),
            **{letter + "1": where},
            r2=LANE.astype(np.uint32),
        )
        assert len(case.launch.findings) == 1


@settings(max_examples=80, deadline=None)
@given(
    offsets=st.lists(st.integers(0, 63), min_size=32, max_size=32),
    values=st.lists(st.integers(0, 3), min_size=32, max_size=32),
    mask=st.integers(1, FULL),
)
def test_any_store_is_lane_by_lane_and_a_race_is_found_exactly_when_there_is_one(offsets, values, mask):
    case = Case()
    region = case.tensor(np.zeros(256, np.uint8))
    case.run(
        "st.global.b32 [%d1], %r1;",
        mask=mask,
        d1=region.start + 4 * np.array(offsets, np.uint64),
        r1=np.array(values, np.uint32),
    )
    wanted = np.zeros(64, np.uint32)
    racy = False
    seen: dict[int, int] = {}
    for lane in range(32):
        if mask >> lane & 1:
            racy |= seen.setdefault(offsets[lane], values[lane]) != values[lane]
            wanted[offsets[lane]] = values[lane]
    assert (region.data.view(np.uint32) == wanted).all()
    assert bool(case.launch.findings) == racy


def test_bulk_zeros():
    case = Case()
    base = case.smem(np.ones(64, np.uint8))
    case.run("st.bulk.weak.shared::cta [%r1], %d1, 0;", mask=1, r1=base + 8, d1=16)
    assert case.cluster.ctas[0].shared.data[:32].tolist() == [1] * 8 + [0] * 16 + [1] * 8
    with pytest.raises(Fault, match="multiple of 8"):
        case.run("st.bulk.weak.shared::cta [%r1], %d1, 0;", mask=1, r1=base, d1=12)
    with pytest.raises(Unsupported, match="literal 0"):
        case.run("st.bulk.weak.shared::cta [%r1], %d1, 1;", mask=1, r1=base, d1=8)


def test_async_store_arrives_later_with_its_bytes():
    lazy = Lazy()
    case = Case(ctas=2, asynchronous=lazy)
    peer = case.cluster.ctas[1]
    base = peer.shared.base
    barrier = peer.unit(MbarrierFile).init(512, 1, what="test")
    barrier.tx = 32 * 4
    barrier.pending = 0
    opcode = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32"
    case.run(
        f"{opcode} [%r1], %r2, [%r3];", r1=(base + 4 * LANE).astype(np.uint32), r2=LANE.astype(np.uint32), r3=base + 512
    )
    assert not peer.shared.written.any()
    assert barrier.phase == 0
    while lazy.step():
        pass
    assert (peer.shared.data[:128].view(np.uint32) == LANE).all()
    assert barrier.phase == 1
    with pytest.raises(Fault, match="mbarrier is in rank 0"):
        case.run(f"{opcode} [%r1], %r2, [%r3];", mask=1, r1=base, r2=1, r3=1024 + 512)
    with pytest.raises(Fault, match="no mbarrier"):
        case.run(f"{opcode} [%r1], %r2, [%r3];", mask=1, r1=base, r2=1, r3=base + 520)


def test_async_store_signals_the_mbarrier_of_each_lane():
    case = Case(ctas=2)
    one, two = case.cluster.ctas
    barriers = {
        (cta, index): cta.unit(MbarrierFile).init(index, 1, what="test")
        for cta, index in ((one, 512), (two, 512), (two, 520))
    }
    base = np.where(LANE < 8, one.shared.base, two.shared.base).astype(np.uint32)
    signal = base + np.where(LANE < 24, 512, 520).astype(np.uint32)
    opcode = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32"
    case.run(
        f"{opcode} [%r1], {{%r2, 9}}, [%r3];",
        r1=base + np.uint32(504) - 8 * LANE.astype(np.uint32),
        r2=LANE.astype(np.uint32),
        r3=signal,
    )
    assert [barrier.tx for barrier in barriers.values()] == [-8 * 8, -16 * 8, -8 * 8]
    words = np.stack([LANE, np.full(32, 9)], axis=1)[::-1]
    assert (one.shared.data[448:512].view(np.uint32).reshape(-1, 2) == words[24:]).all()
    assert (two.shared.data[256:448].view(np.uint32).reshape(-1, 2) == words[:24]).all()
    assert one.shared.written.sum() == 8 * 8
    assert two.shared.written.sum() == 24 * 8


@pytest.mark.parametrize(
    ("announced", "pending", "phase", "left"),
    [(128, 0, 1, 0), (0, 0, 0, -128), (200, 0, 0, 72), (60, 1, 0, -68), (60, 0, 0, None), (64, 0, 0, None)],
)
def test_async_store_may_not_end_a_phase_between_its_lanes(announced, pending, phase, left):
    case = Case()
    shared = case.cluster.ctas[0].shared
    barrier = case.cluster.ctas[0].unit(MbarrierFile).init(512, 1, what="test")
    barrier.tx, barrier.pending = announced, pending
    opcode = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32"
    with (
        pytest.raises(Fault, match=f"brings 128 bytes to the .* whose phase waits for {announced} more")
        if left is None
        else nullcontext()
    ):
        case.run(f"{opcode} [%r1], 1, [%r2];", r1=(shared.base + 4 * LANE).astype(np.uint32), r2=shared.base + 512)
    assert (barrier.phase, barrier.tx) == (phase, announced if left is None else left)


def test_async_store_names_the_lane_with_a_bad_address():
    case = Case()
    shared = case.cluster.ctas[0].shared
    case.cluster.ctas[0].unit(MbarrierFile).init(512, 1, what="test")
    opcode = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64"
    for lane, address, message in (
        (3, shared.base + 4, "lane 3"),
        (5, shared.base + 512, "overlap"),
        (7, 0x0080_0000, "lane 7"),
    ):
        where = np.where(lane == LANE, address, shared.base + 8 * LANE).astype(np.uint32)
        with pytest.raises(Fault, match=message):
            case.run(f"{opcode} [%r1], %d1, [%r2];", r1=where, d1=1, r2=shared.base + 512)
    with pytest.raises(Fault, match="of a cluster of 1"):
        case.run(f"{opcode} [%r1], %d1, [%r2];", r1=5 << 24 | shared.base, d1=1, r2=shared.base + 512)
    assert not shared.written.any()


def test_inactive_lanes_write_nothing():
    case = Case()
    region = case.tensor(np.zeros(256, np.uint8))
    garbage = np.where(bools(0xFF), region.start + 8 * LANE, 3)
    case.run("st.global.b64 [%d1], %d2;", mask=0xFF, d1=garbage, d2=LANE + 1)
    assert (region.data.view(np.uint64)[:8] == LANE[:8] + 1).all()
