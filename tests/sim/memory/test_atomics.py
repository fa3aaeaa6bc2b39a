"""Atomics against a lane-by-lane reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile
from tests.sim.memory.harness import Case
from tests.sim.memory.oracles import atomic_result

LANE = np.arange(32, dtype=np.uint64)
RNG = np.random.default_rng(6)

INTEGERS = [
    *[(op, t) for op in ("add", "min", "max") for t in ("u32", "s32", "u64", "s64")],
    ("inc", "u32"),
    ("dec", "u32"),
    *[(op, t) for op in ("and", "or", "xor", "exch") for t in ("b32", "b64")],
]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "typed"), INTEGERS)
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_integers_in_the_order_of_lanes(op, typed, space, data):
    bits = int(typed[1:])
    mask = data.draw(st.integers(1, FULL))
    places = data.draw(st.lists(st.integers(0, data.draw(st.sampled_from([0, 5, 40]))), min_size=32, max_size=32))
    edge = [0, 1, (1 << bits) - 1, 1 << (bits - 1), 5]
    values = data.draw(st.lists(st.sampled_from(edge) | st.integers(0, (1 << bits) - 1), min_size=32, max_size=32))
    start = [data.draw(st.sampled_from(edge)) for _ in range(41)]
    case = Case()
    memory = np.array(start, f"u{bits // 8}")
    if space == "shared":
        base = case.smem(memory)
        raw = case.cluster.ctas[0].shared.data
    else:
        region = case.tensor(memory)
        base, raw = region.start, region.data
    letter = "r" if bits == 32 else "d"
    where = base + np.array(places, np.uint64) * np.uint64(bits // 8)
    register = "r63" if space == "shared" else "d63"
    address = where.astype(np.uint32 if space == "shared" else np.uint64)
    if len(set(places)) == 1:
        address = int(address[0])
    named = {"global": "global.", "shared": "shared.", "generic": ""}[space]
    result = case.run(
        f"atom.{named}{op}.{typed} %{letter}1, [%{register}], %{letter}2;",
        mask=mask,
        **{register: address, letter + "2": np.array(values, f"u{bits // 8}")},
    )
    wanted = list(start)
    got = result[letter + "1"]
    for lane in range(32):
        if mask >> lane & 1:
            assert int(got if type(got) is int else got[lane]) == wanted[places[lane]]
            wanted[places[lane]] = atomic_result(op, typed, wanted[places[lane]], values[lane])
    assert raw[: memory.nbytes].view(memory.dtype).tolist() == wanted


@pytest.mark.parametrize("bits", [16, 32, 64, 128])
def test_compare_and_swap(bits):
    case = Case()
    letter = {16: "h", 32: "r", 64: "d", 128: "q"}[bits]
    region = case.tensor(np.frombuffer((7).to_bytes(bits // 8, "little") * 2, np.uint8))
    new = (1 << bits) - 3
    body = f"atom.acq_rel.gpu.global.cas.b{bits} %{letter}1, [%d60], %{letter}2, %{letter}3;"
    lane0 = case.run(body, mask=1, d60=region.start, **{letter + "2": 7, letter + "3": new})
    assert lane0[letter + "1"] == 7
    again = case.run(body, mask=1, d60=region.start, **{letter + "2": 7, letter + "3": 1})
    assert again[letter + "1"] == new
    assert int.from_bytes(region.data[: bits // 8].tobytes(), "little") == new
    assert int.from_bytes(region.data[bits // 8 :].tobytes(), "little") == 7


def test_only_one_lane_wins_a_lock():
    case = Case()
    region = case.tensor(np.zeros(4, np.uint8))
    result = case.run("atom.global.cas.b32 %r1, [%d1], 0, 1;", d1=region.start)["r1"]
    assert result.tolist() == [0] + [1] * 31


def test_exchange_of_128_bits():
    case = Case()
    region = case.tensor(np.arange(16, dtype=np.uint8))
    result = case.run("atom.global.exch.b128 %q1, [%d1], %q2;", mask=1, d1=region.start, q2=5)
    assert result["q1"] == int.from_bytes(bytes(range(16)), "little")
    assert region.data.tolist() == [5] + [0] * 15


FLOATS = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("typed", ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_floating_sums_in_the_order_of_lanes(typed, space):
    case = Case()
    dtype = np.dtype(FLOATS[typed.removesuffix("x2")])
    many = 2 if typed.endswith("x2") else 1
    values = RNG.normal(size=(32, many)).astype(dtype)
    memory = RNG.normal(size=(4, many)).astype(dtype)
    base = case.smem(memory) if space == "shared" else case.tensor(memory).start
    bits = dtype.itemsize * 8 * many
    letter = {16: "h", 32: "r", 64: "d"}[bits]
    noftz = "noftz." if dtype.itemsize == 2 else ""
    where = (base + (LANE % 4) * np.uint64(bits // 8)).astype(np.uint32 if space == "shared" else np.uint64)
    register = "r63" if space == "shared" else "d63"
    operand = np.ascontiguousarray(values).view(f"u{bits // 8}").reshape(32)
    case.run(f"red.{space}.add.{noftz}{typed} [%{register}], %{letter}2;", **{register: where, letter + "2": operand})
    wanted = memory.copy()
    for lane in range(32):
        wanted[lane % 4] = (wanted[lane % 4] + values[lane]).astype(dtype)
    raw = case.cluster.ctas[0].shared.data if space == "shared" else case.machine.memory.find(base).data
    assert raw[: wanted.nbytes].tobytes() == wanted.tobytes()


def test_f32_sums_flush_subnormals_in_global_memory_only():
    tiny = np.array([0x0000_0003], np.uint32)
    case = Case()
    region, base = case.tensor(tiny), case.smem(tiny)
    body = "red.global.add.f32 [%d1], %r1; red.shared.add.f32 [%r2], %r1;"
    case.run(body, mask=1, d1=region.start, r2=base, r1=0x8000_0001)
    assert region.data.view(np.uint32)[0] == 0
    assert case.cluster.ctas[0].shared.data[:4].view(np.uint32)[0] == 2


@pytest.mark.parametrize(
    ("typed", "count", "op"),
    [
        ("f32", 2, "add"),
        ("f32", 4, "add"),
        ("f16", 8, "add"),
        ("bf16", 4, "max"),
        ("f16x2", 4, "min"),
        ("bf16x2", 2, "add"),
    ],
)
def test_vectors(typed, count, op):
    case = Case()
    dtype = np.dtype(FLOATS[typed.removesuffix("x2")])
    per = 2 if typed.endswith("x2") else 1
    memory = RNG.normal(size=(32, count * per)).astype(dtype)
    values = RNG.normal(size=(32, count * per)).astype(dtype)
    region = case.tensor(memory)
    bits = dtype.itemsize * 8 * per
    letter = {16: "h", 32: "r"}[bits]
    words = np.ascontiguousarray(values).view(f"u{bits // 8}").reshape(32, count)
    names = [f"{letter}{i + 1}" for i in range(count)]
    target = ", ".join(f"%{letter}{20 + i}" for i in range(count))
    noftz = "noftz." if dtype.itemsize == 2 else ""
    result = case.run(
        f"atom.global.v{count}.{op}.{noftz}{typed} {{{target}}}, [%d60], {{{', '.join('%' + n for n in names)}}};",
        d60=region.start + LANE * np.uint64(memory.nbytes // 32),
        **{name: words[:, i].copy() for i, name in enumerate(names)},
    )
    before = np.ascontiguousarray(memory).view(f"u{bits // 8}").reshape(32, count)
    for i in range(count):
        assert (result[f"{letter}{20 + i}"] == before[:, i]).all()
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    wanted = function(memory.astype(np.float32), values.astype(np.float32)).astype(dtype)
    assert region.data.tobytes() == wanted.tobytes()


def test_minimum_of_halves_prefers_numbers_and_negative_zero():
    case = Case()
    region = case.tensor(np.array([0x7E00, 0x0000, 0x8000, 0x7E00], np.uint16))
    names = {f"h{i + 1}": v for i, v in enumerate([0x3C00, 0x8000, 0x0000, 0x7C01])}
    case.run("red.global.v4.min.noftz.f16 [%d1], {%h1, %h2, %h3, %h4};", mask=1, d1=region.start, **names)
    assert region.data.view(np.uint16).tolist() == [0x3C00, 0x8000, 0x8000, 0x7FFF]


def test_peers_and_generic_addresses():
    case = Case(ctas=2)
    own, peer = case.smem(np.zeros(8, np.uint8)), case.smem(np.zeros(8, np.uint8), rank=1)
    region = case.tensor(np.zeros(8, np.uint8))
    both = np.where(LANE < 10, own, peer).astype(np.uint32)
    case.run("red.shared::cluster.add.u32 [%r1], 1;", r1=both)
    mixed = np.where(LANE < 4, np.uint64(region.start), np.uint64(SHARED_WINDOW + peer))
    case.run("red.add.u32 [%d1], 1;", d1=mixed)
    assert [case.cluster.ctas[i].shared.data[0] for i in (0, 1)] == [10, 22 + 28]
    assert region.data[0] == 4
    counters = case.launch.counters
    assert counters["cluster.atomic.lanes"] == 22 + 28
    assert counters["shared.atomic.lanes"] == 10
    assert counters["global.atomic.lanes"] == 4


def test_faults():
    case = Case()
    region = case.tensor(np.zeros(8, np.uint8), "flags")
    with pytest.raises(Fault, match="after the end of flags"):
        case.run("red.global.add.u32 [%d1], 1;", d1=region.end)
    with pytest.raises(Fault, match="multiple of 4"):
        case.run("red.global.add.u32 [%d1], 1;", d1=region.start + 2)
    with pytest.raises(Fault, match="never written"):
        case.run("red.shared.add.u32 [%r1], 1;", r1=case.cluster.ctas[0].shared.base)
    region.writable = False
    with pytest.raises(Fault, match="read-only"):
        case.run("atom.global.add.u32 %r1, [%d1], 1;", d1=region.start)


@pytest.mark.parametrize(
    "opcode",
    [
        "red.global.exch.b32", "red.global.add.b32", "red.global.add.f16", "red.global.min.f32", "red.global.inc.u64",
        "red.global.v2.add.u32", "red.global.add.noftz.f32", "red.global.add.frob.u32", "red.global.u32",
        "red.local.add.u32",
    ],
)  # fmt: skip
def test_what_is_no_reduction(opcode):
    with pytest.raises(Unsupported):
        Case().run(f"{opcode} [%d1], %r1;", d1=0)


def test_a_change_that_others_may_see():
    case = Case()
    region = case.tensor(np.zeros(8, np.uint8))
    before = case.machine.changes
    case.run("red.release.gpu.global.add.u32 [%d1], 1;", mask=1, d1=region.start)
    assert case.machine.changes == before + 1


def test_reductions_claim_outputs_without_a_conflict():
    case = Case(ctas=2)
    region = case.tensor(np.zeros(128, np.uint8))
    coverage = region.watch(4)
    for rank in (0, 1):
        case.run("red.global.add.f32 [%d1], %r1;", rank=rank, d1=region.start + 4 * LANE, r1=0x3F80_0000)
    assert not coverage.counts
    assert (region.owner == 0).all()


def test_asynchronous_reduction_signals_its_mbarrier():
    lazy = Lazy()
    case = Case(ctas=2, asynchronous=lazy)
    base = case.smem(np.zeros(8, np.uint8), rank=1)
    barrier = case.cluster.ctas[1].unit(MbarrierFile).init(512, 1, what="test")
    barrier.pending, barrier.tx = 0, 128
    opcode = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32"
    case.run(f"{opcode} [%r1], %r2, [%r3];", r1=base, r2=LANE.astype(np.uint32), r3=base + 512)
    data = case.cluster.ctas[1].shared.data
    assert data[:4].view(np.uint32)[0] == 0
    while lazy.step():
        pass
    assert data[:4].view(np.uint32)[0] == 31 * 16
    assert barrier.phase == 1
