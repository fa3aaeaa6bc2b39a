"""Loads against numpy, and what they must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import FULL, bools, first
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from tests.sim.memory.harness import Case
from tests.sim.memory.oracles import loaded_registers

LANE = np.arange(32, dtype=np.uint64)
BYTES = np.random.default_rng(4).integers(0, 256, 4096).astype(np.uint8)
REGISTER = {8: "h", 16: "h", 32: "r", 64: "d"}
WIDTH = {"h": 16, "r": 32, "d": 64}


FORMS = [
    (kind, bits, count)
    for kind in "bus"
    for bits in (8, 16, 32, 64)
    for count in (1, 2, 4, 8)
    if bits * count <= 128 or (bits >= 32 and bits * count == 256)
    if not (count == 8 and bits < 32)
] + [("f", 32, 4), ("f", 64, 2)]


@pytest.mark.parametrize(("kind", "bits", "count"), FORMS)
@pytest.mark.parametrize("mask", [FULL, 0x8000_F0F1])
def test_every_width_and_vector_from_global_by_lane(kind, bits, count, mask):
    case = Case()
    region = case.tensor(BYTES)
    letter = REGISTER[bits]
    size = bits * count // 8
    vector = "" if count == 1 else f".v{count}"
    names = [f"{letter}{i + 1}" for i in range(count)]
    target = "%" + names[0] if count == 1 else "{" + ", ".join("%" + name for name in names) + "}"
    address = region.start + (LANE * 7 % 32) * size + 64
    result = case.run(f"ld.global{vector}.{kind}{bits} {target}, [%d60+64];", mask=mask, d60=address - 64)
    data = BYTES[64 : 64 + 32 * size].reshape(32, size)[(LANE * 7 % 32).astype(int)]
    wanted = loaded_registers(np.ascontiguousarray(data), bits, count, WIDTH[letter], signed=kind == "s")
    for name, column in zip(names, wanted, strict=True):
        assert result[name].dtype == column.dtype
        assert (result[name] == column)[bools(mask)].all()


@pytest.mark.parametrize(("kind", "bits", "count"), FORMS)
def test_one_address_gives_ints(kind, bits, count):
    case = Case()
    region = case.tensor(BYTES)
    letter = REGISTER[bits]
    size = bits * count // 8
    vector = "" if count == 1 else f".v{count}"
    names = [f"{letter}{i + 1}" for i in range(count)]
    target = "%" + names[0] if count == 1 else "{" + ", ".join("%" + name for name in names) + "}"
    result = case.run(f"ld.global{vector}.{kind}{bits} {target}, [%d60];", d60=region.start + 5 * size)
    wanted = loaded_registers(BYTES[5 * size : 6 * size].copy(), bits, count, WIDTH[letter], signed=kind == "s")
    assert [result[name] for name in names] == [int(column[0]) for column in wanted]
    assert all(type(result[name]) is int for name in names)


def test_a_narrow_element_is_extended_to_a_wide_register():
    case = Case()
    region = case.tensor(np.array([0x80, 0x7F], np.uint8))
    result = case.run("ld.global.s8 %r1, [%d1]; ld.global.u8 %r2, [%d1]; ld.global.s8 %d2, [%d1];", d1=region.start)
    assert (result["r1"], result["r2"], result["d2"]) == (0xFFFF_FF80, 0x80, 0xFFFF_FFFF_FFFF_FF80)


def test_b128_is_one_value_of_128_bits():
    case = Case()
    region = case.tensor(BYTES)
    address = region.start + LANE * 16
    result = case.run("ld.global.b128 %q1, [%d1]; ld.global.b128 %q2, [%d2];", d1=region.start, d2=address)
    assert result["q1"] == int.from_bytes(BYTES[:16].tobytes(), "little")
    assert [int(v) for v in result["q2"]] == [
        int.from_bytes(BYTES[16 * i : 16 * i + 16].tobytes(), "little") for i in range(32)
    ]


@pytest.mark.parametrize(
    "opcode",
    [
        "ld.volatile.global.b32",
        "ld.relaxed.gpu.global.b32",
        "ld.acquire.sys.global.b32",
        "ld.acquire.cta.b32",
        "ld.mmio.relaxed.sys.global.b32",
        "ld.global.nc.L1::no_allocate.L2::256B.b32",
        "ld.global.L1::evict_last.L2::evict_first.b32",
        "ld.weak.global.cg.b32",
        "ld.global.b32.cs",
        "ld.b32",
        "ldu.global.b32",
    ],
)
def test_modifiers_that_do_not_change_what_is_read(opcode):
    case = Case()
    region = case.tensor(BYTES)
    result = case.run(f"{opcode} %r1, [%d1+8];", d1=region.start)
    assert result["r1"] == int(BYTES.view(np.uint32)[2])


def test_a_cache_policy_is_an_operand():
    case = Case()
    region = case.tensor(BYTES)
    result = case.run("ld.global.nc.L2::cache_hint.b32 %r1, [%d1], %d2;", d1=region.start, d2=7)
    assert result["r1"] == int(BYTES.view(np.uint32)[0])


@pytest.mark.parametrize(
    ("opcode", "said"),
    [
        ("ld.global.v3.b32", "v3"),
        ("ld.relaxed.global.b32", "without a scope"),
        ("ld.gpu.global.b32", "scope"),
        ("ld.shared.nc.b32", "without .global"),
        ("ld.global.L1::evict_last.L1::evict_first.b32", "second"),
        ("ld.global.L3::128B.b32", "L3"),
        ("ld.release.gpu.global.b32", "release"),
        ("ld.mmio.relaxed.gpu.global.b32", "mmio"),
        ("ld.volatile.local.b32", "local"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(opcode, said):
    case = Case()
    with pytest.raises((Unsupported, ValueError, Fault), match=said):
        case.run(f"{opcode} %r1, [%d1];", d1=0)


def test_parameters_by_name_and_by_address():
    case = Case()
    data = np.frombuffer(case.parameters, np.uint8)
    result = case.run(
        "ld.param.b64 %d1, [p0]; ld.param.v2.b32 {%r1, %r2}, [p1+8]; ld.param.s8 %r3, [p1+3];"
        "ld.global.b32 %r4, [%d2+8];",
        d2=case.launch.parameter_address,
    )
    words = data.view(np.uint32)
    assert result["d1"] == int(data.view(np.uint64)[0])
    assert (result["r1"], result["r2"], result["r4"]) == (int(words[4]), int(words[5]), int(words[2]))
    assert result["r3"] == int(data[11])


def test_parameters_past_the_end_and_written():
    case = Case()
    with pytest.raises(Fault, match="which have 24 bytes"):
        case.run("ld.param.b64 %d1, [p1+16];")
    with pytest.raises(Fault) as caught:
        case.run("st.global.b32 [%d1], %r1;", d1=case.launch.parameter_address, r1=1)
    assert caught.value.kind == "read-only"
    assert "the kernel's parameters" in caught.value.message


@pytest.mark.parametrize("space", ["shared", "shared::cta", "shared::cluster"])
@pytest.mark.parametrize("mask", [FULL, 0x00FF_00F0])
def test_shared_by_lane_and_uniform(space, mask):
    case = Case()
    base = case.smem(BYTES)
    where = (base + 12 * LANE).astype(np.uint32)
    result = case.run(
        f"ld.{space}.b32 %r1, [%r10]; ld.{space}.v4.b32 {{%r2,%r3,%r4,%r5}}, [%r11];",
        mask=mask,
        r10=where,
        r11=base + 32,
    )
    words = BYTES.view(np.uint32)
    assert (result["r1"] == words[:96:3])[bools(mask)].all()
    assert [result[f"r{i}"] for i in range(2, 6)] == words[8:12].tolist()


def test_a_peer_cta_is_read_through_its_rank():
    case = Case(ctas=4)
    base = case.smem(BYTES, rank=2)
    assert base >> 24 == 2
    assert case.run("ld.shared::cluster.b32 %r1, [%r2];", r2=base)["r1"] == int(BYTES.view(np.uint32)[0])
    lanes = (base + 4 * LANE).astype(np.uint32)
    assert (case.run("ld.shared::cluster.b32 %r1, [%r2];", r2=lanes)["r1"] == BYTES.view(np.uint32)[:32]).all()
    with pytest.raises(Fault, match="is in CTA 2 of the cluster"):
        case.run("ld.shared.b32 %r1, [%r2];", r2=base)
    with pytest.raises(Fault, match="rank 5"):
        case.run("ld.shared::cluster.b32 %r1, [%r2];", r2=5 << 24 | 1024)


def test_generic_addresses_by_window_and_by_lane():
    case = Case()
    base = case.smem(BYTES)
    region = case.tensor(BYTES[::-1])
    words, other = BYTES.view(np.uint32), region.data.view(np.uint32)
    shared = np.uint64(SHARED_WINDOW + base) + 4 * LANE
    both = np.where(LANE % 2 == 0, shared, region.start + 4 * LANE)
    result = case.run("ld.b32 %r1, [%d1]; ld.b32 %r2, [%d2];", d1=both, d2=SHARED_WINDOW + base)
    assert (result["r1"] == np.where(LANE % 2 == 0, words[:32], other[:32])).all()
    assert result["r2"] == int(words[0])


def test_local_memory_is_each_threads_own():
    case = Case()
    result = case.run("st.local.b32 [stack+4], %r1; ld.local.b32 %r2, [stack+4];", r1=LANE.astype(np.uint32))
    assert (result["r2"] == LANE).all()
    case.run("ld.local.b32 %r2, [stack+8];")
    (finding,) = case.launch.findings
    assert finding.kind == "uninitialised"
    assert "never wrote" in finding.message
    with pytest.raises(Fault, match="a thread has 64"):
        case.run("ld.local.b32 %r2, [stack+64];")


def test_local_arrays_with_an_index_a_lane():
    case = Case()
    index = (LANE * 5 % 16).astype(np.uint64) * 4
    values = LANE.astype(np.uint32) + 100
    result = case.run(
        "st.local.b32 [%d1], %r1; ld.local.b32 %r2, [%d1]; st.local.v2.b16 [%d2], {%h1, 7}; ld.local.b32 %r3, [%d2];",
        d1=index,
        d2=8,
        r1=values,
        h1=LANE.astype(np.uint16),
    )
    assert (result["r2"] == values).all()
    assert (result["r3"] == (LANE | 7 << 16)).all()
    far = index.copy()
    far[11] = 64
    with pytest.raises(Fault, match="lane 11"):
        case.run("ld.local.b32 %r2, [%d1];", d1=far)
    far[11] = 2
    with pytest.raises(Fault, match="multiple of 4"):
        case.run("ld.local.b32 %r2, [%d1];", d1=far)
    case.run("ld.local.b32 %r2, [%d1];", mask=8, d1=12 + 0 * index)
    assert "lane 3 reads local byte 12" in case.launch.findings[-1].message


class TestFaults:
    def test_out_of_bounds_says_the_tensor_in_the_users_words(self):
        case = Case()
        region = case.tensor(BYTES, "A", describe=lambda byte: f"A of group 2, row {byte // 64}, k {byte % 64}")
        with pytest.raises(Fault) as caught:
            case.run("ld.global.b32 %r1, [%d1];", d1=region.end)
        assert caught.value.kind == "out-of-bounds"
        assert "0 bytes after the end of A" in caught.value.message
        with pytest.raises(Fault, match="A of group 2, row 63, k 62"):
            case.run("ld.global.b32 %r1, [%d1];", d1=region.end - 2)

    def test_one_lane_out_of_bounds_is_named(self):
        case = Case()
        region = case.tensor(BYTES)
        where = region.start + 4 * LANE
        where[19] = region.end
        with pytest.raises(Fault, match="lane 19"):
            case.run("ld.global.b32 %r1, [%d1];", d1=where)
        assert "r1" in case.run("ld.global.b32 %r1, [%d1];", d1=where, mask=FULL & ~(1 << 19))

    def test_lanes_in_two_tensors_are_fine_and_the_gap_between_is_not(self):
        case = Case()
        one, two = case.tensor(BYTES, "A"), case.tensor(BYTES[::-1], "B")
        where = np.where(LANE < 9, one.start + 4 * LANE, two.start + 4 * LANE)
        result = case.run("ld.global.b32 %r1, [%d1];", d1=where)["r1"]
        assert (result == np.where(LANE < 9, one.data.view("u4")[:32], two.data.view("u4")[:32])).all()
        where[30] = one.end + 4
        with pytest.raises(Fault, match="4 bytes after the end of A"):
            case.run("ld.global.b32 %r1, [%d1];", d1=where)

    @pytest.mark.parametrize("space", ["global", "shared"])
    @pytest.mark.parametrize("where", ["one", "lanes"])
    def test_misaligned_by_the_whole_vector(self, space, where):
        case = Case()
        start = case.tensor(BYTES).start if space == "global" else case.smem(BYTES)
        letter, dtype = ("d", np.uint64) if space == "global" else ("r", np.uint32)
        address = start + 8 if where == "one" else (start + 16 * LANE + 8 * (LANE == 5)).astype(dtype)
        with pytest.raises(Fault) as caught:
            case.run(f"ld.{space}.v4.b32 {{%r1,%r2,%r3,%r4}}, [%{letter}10];", **{letter + "10": address})
        assert caught.value.kind == "misaligned"
        assert where == "one" or "lane 5" in caught.value.message
        case.run(f"ld.{space}.v2.b32 {{%r1,%r2}}, [%{letter}10];", **{letter + "10": address})

    def test_shared_bytes_that_nothing_wrote(self):
        case = Case()
        base = case.smem(BYTES[:64])
        case.run("ld.shared.b32 %r1, [%r2+60];", r2=base)
        assert case.launch.findings == []
        case.run("ld.shared.b64 %d1, [%r2+64];", r2=base)
        case.run("ld.shared.b32 %r1, [%r2];", r2=(base + 4 * LANE).astype(np.uint32))
        one, lanes = case.launch.findings
        assert (one.kind, lanes.kind) == ("uninitialised", "uninitialised")
        assert "byte 64 of shared memory" in one.message
        assert "no barrier behind the write of another thread" in one.hint
        assert "lane 16" in lanes.message

    def test_shared_bounds(self):
        case = Case()
        base = case.smem(BYTES)
        case.run("ld.shared.b32 %r1, [%r2];", r2=base + 4092)
        with pytest.raises(Fault, match="launched with 4096"):
            case.run("ld.shared.b32 %r1, [%r2];", r2=base + 4096)
        with pytest.raises(Fault, match="lane 31"):
            case.run("ld.shared.b32 %r1, [%r2];", r2=(base + 4096 - 31 * 4 + 4 * LANE).astype(np.uint32))

    def test_the_bytes_of_an_mbarrier(self):
        case = Case()
        base = case.smem(BYTES)
        shared = case.cluster.ctas[0].shared
        shared.opaque[64] = (8, "the mbarrier")
        case.run("ld.shared.b32 %r1, [%r2+60]; ld.shared.b32 %r1, [%r2+72];", r2=base)
        with pytest.raises(Fault, match="mbarrier at byte 64"):
            case.run("ld.shared.b32 %r1, [%r2+68];", r2=base)
        with pytest.raises(Fault, match="mbarrier at byte 64"):
            case.run("ld.shared.b32 %r1, [%r2];", r2=(base + 4 * LANE).astype(np.uint32))
        case.run("ld.shared.b32 %r1, [%r2];", r2=(base + 72 + 4 * LANE).astype(np.uint32))

    def test_global_memory_that_nothing_wrote_where_it_is_tracked(self):
        case = Case()
        region = case.tensor(BYTES, initialised=np.zeros(4096, bool))
        case.run("st.global.b32 [%d1], 7; ld.global.b32 %r1, [%d1];", d1=region.start)
        assert case.launch.findings == []
        case.run("ld.global.b32 %r1, [%d1+4];", d1=region.start)
        assert "which was never written" in case.launch.findings[0].message

    def test_the_non_coherent_path_reads_nothing_that_this_launch_wrote(self):
        case = Case()
        region = case.tensor(BYTES)
        region.watch(4)
        case.run("ld.global.nc.b32 %r1, [%d1]; st.global.b32 [%d1+4], 7; ld.global.b32 %r1, [%d1+4];", d1=region.start)
        with pytest.raises(Fault, match=r"ld.global.nc.b32: reads A at byte 4"):
            case.run("ld.global.nc.b32 %r1, [%d1+4];", d1=region.start)

    def test_ldu_wants_one_address(self):
        case = Case()
        region = case.tensor(BYTES)
        with pytest.raises(Fault, match="addresses differ"):
            case.run("ldu.global.b32 %r1, [%d1];", d1=region.start + 4 * LANE)


@settings(max_examples=60, deadline=None)
@given(
    offsets=st.lists(st.integers(0, 255), min_size=32, max_size=32),
    mask=st.integers(1, FULL),
    size=st.sampled_from([1, 2, 4, 8]),
)
def test_any_addresses_under_any_mask(offsets, mask, size):
    case = Case()
    region = case.tensor(BYTES)
    letter = REGISTER[8 * size]
    where = np.array(offsets, np.uint64)
    result = case.run(f"ld.global.u{8 * size} %{letter}1, [%d1];", mask=mask, d1=region.start + where * size)
    value = result[letter + "1"]
    items = BYTES[: 256 * size].view(f"u{size}")[where.astype(int)]
    if type(value) is int:
        assert (items[bools(mask)] == value).all()
    else:
        assert (value == items)[bools(mask)].all()
    assert int(items[first(mask)]) == int(value if type(value) is int else value[first(mask)])


def test_a_register_does_not_change_when_memory_does():
    case = Case()
    region = case.tensor(BYTES)
    result = case.run("ld.global.b32 %r1, [%d1];", d1=region.start + 4 * LANE)
    before = result["r1"].copy()
    region.data[:] = 0
    assert (result["r1"] == before).all()


def test_regions_are_cut_where_they_end():
    case = Case()
    region: Region = case.tensor(BYTES)
    case.run("ld.global.b32 %r1, [%d1];", d1=region.start + 1024)
    region.cut(1024)
    with pytest.raises(Fault, match="0 bytes after the end"):
        case.run("ld.global.b32 %r1, [%d1];", d1=region.start + 1024)
