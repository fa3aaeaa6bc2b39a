"""ldmatrix, stmatrix and movmatrix, element by element as the ISA's figures have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from tests.sim.memory.harness import Case

RNG = np.random.default_rng(7)
BYTES = RNG.integers(0, 256, 4096).astype(np.uint8)


def rows_at(base: int, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of ``count`` rows in any order, and the rows' offsets; the lanes beyond hold rubbish."""
    offsets = np.random.default_rng(seed).permutation(4096 // 16)[:32] * 16
    address = (base + offsets).astype(np.uint32)
    address[count:] = 3
    return address, offsets


def element(register: np.ndarray, lane: int, index: int, bits: int) -> int:
    return int(register[lane]) >> (bits * index) & ((1 << bits) - 1)


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_m8n8(number, transposed, seed):
    case = Case()
    address, offsets = rows_at(case.smem(BYTES), seed, 8 * number)
    targets = ", ".join(f"%r{i}" for i in range(number))
    trans = ".trans" if transposed else ""
    result = case.run(f"ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {{{targets}}}, [%r60];", r60=address)
    for matrix in range(number):
        values = [BYTES[offsets[8 * matrix + row] :][:16].view(np.uint16) for row in range(8)]
        for lane in range(32):
            for half in (0, 1):
                row, column = lane // 4, 2 * (lane % 4) + half
                wanted = values[column][row] if transposed else values[row][column]
                assert element(result[f"r{matrix}"], lane, half, 16) == wanted


@pytest.mark.parametrize("number", [1, 2])
def test_m16n16_of_bytes_transposed(number):
    case = Case()
    address, offsets = rows_at(case.smem(BYTES), number, 16 * number)
    targets = ", ".join(f"%r{i}" for i in range(2 * number))
    result = case.run(f"ldmatrix.sync.aligned.m16n16.x{number}.trans.shared.b8 {{{targets}}}, [%r60];", r60=address)
    for register in range(2 * number):
        for lane in range(32):
            for byte in range(4):
                row = 16 * (register // 2) + 4 * (lane % 4) + byte
                column = lane // 4 + 8 * (register % 2)
                assert element(result[f"r{register}"], lane, byte, 8) == BYTES[offsets[row] + column]


@pytest.mark.parametrize(("source", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
@pytest.mark.parametrize("kind", ["m8n16", "m16n16"])
def test_packed_elements_become_bytes(source, bits, kind):
    case = Case()
    shared = case.cluster.ctas[0].shared
    address, offsets = rows_at(case.smem(BYTES), bits, 16)
    for offset in offsets[:16]:
        shared.written[offset + 2 * bits : offset + 16] = False  # the padding may be anything
    trans = ".trans" if kind == "m16n16" else ""
    number = 1 if kind == "m16n16" else 2
    result = case.run(
        f"ldmatrix.sync.aligned.{kind}.x{number}{trans}.shared.b8x16.{source} {{%r0, %r1}}, [%r60];", r60=address
    )

    def packed(row: int, column: int) -> int:
        whole = int.from_bytes(BYTES[offsets[row] : offsets[row] + 16].tobytes(), "little")
        return whole >> (bits * column) & ((1 << bits) - 1)

    for register in (0, 1):
        for lane in range(32):
            for byte in range(4):
                if kind == "m8n16":
                    row, column = 8 * register + lane // 4, 4 * (lane % 4) + byte
                else:
                    row, column = 4 * (lane % 4) + byte, lane // 4 + 8 * register
                assert element(result[f"r{register}"], lane, byte, 8) == packed(row, column)
    shared.written[offsets[3]] = False
    with pytest.raises(Fault, match="lane 3"):
        case.run(
            f"ldmatrix.sync.aligned.{kind}.x{number}{trans}.shared.b8x16.{source} {{%r0, %r1}}, [%r60];", r60=address
        )


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
def test_what_stmatrix_stores_ldmatrix_loads(number, trans, space):
    case = Case()
    address, offsets = rows_at(case.cluster.ctas[0].shared.base, 3, 8 * number)
    values = {f"r{i}": RNG.integers(0, 1 << 32, 32, dtype=np.uint32) for i in range(number)}
    names = ", ".join(f"%r{i}" for i in range(number))
    others = ", ".join(f"%r{i + 10}" for i in range(number))
    register, where = "r60", address
    if not space:
        register, where = "d60", address.astype(np.uint64) + np.uint64(SHARED_WINDOW)
    result = case.run(
        f"stmatrix.sync.aligned.m8n8.x{number}{trans}{space}.b16 [%{register}], {{{names}}};"
        f"ldmatrix.sync.aligned.m8n8.x{number}{trans}{space}.b16 {{{others}}}, [%{register}];",
        **{register: where},
        **values,
    )
    for i in range(number):
        assert (result[f"r{i + 10}"] == values[f"r{i}"]).all()
    written = case.cluster.ctas[0].shared.written
    assert written.sum() == 128 * number
    assert all(written[offset : offset + 16].all() for offset in offsets[: 8 * number])


@pytest.mark.parametrize(
    "modifiers", ["x4.m8n8.shared.b16.trans", "shared.b16.trans.x4.m8n8", "b16.x4.m8n8.shared.trans"]
)
def test_modifiers_may_follow_the_type(modifiers):
    case = Case()
    address, _ = rows_at(case.smem(BYTES), 5, 32)
    texts = [f"{m}.sync.aligned.{{}} {{}};" for m in ("ldmatrix", "stmatrix")]
    for order in ("m8n8.x4.trans.shared.b16", modifiers):
        first, second = "{%r1, %r2, %r3, %r4}", "{%r11, %r12, %r13, %r14}"
        loaded = case.run(texts[0].format(order, f"{first}, [%r60]"), r60=address)
        case.run(
            texts[1].format(order, f"[%r60], {first}"), r60=address, **{f"r{i}": loaded[f"r{i}"] for i in range(1, 5)}
        )
        again = case.run(f"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {second}, [%r60];", r60=address)
        assert all((again[f"r{i + 10}"] == loaded[f"r{i}"]).all() for i in range(1, 5))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_m16n8_of_bytes_is_stored_transposed(number):
    case = Case()
    address, offsets = rows_at(case.cluster.ctas[0].shared.base, 4, 8 * number)
    values = {f"r{i}": RNG.integers(0, 1 << 32, 32, dtype=np.uint32) for i in range(number)}
    names = ", ".join(f"%r{i}" for i in range(number))
    case.run(f"stmatrix.sync.aligned.m16n8.x{number}.trans.shared.b8 [%r60], {{{names}}};", r60=address, **values)
    data = case.cluster.ctas[0].shared.data
    for matrix in range(number):
        for lane in range(32):
            for byte in range(4):
                row, column = 2 * (lane % 4) + byte % 2, lane // 4 + 8 * (byte // 2)
                stored = data[offsets[8 * matrix + row] + column]
                assert stored == element(values[f"r{matrix}"], lane, byte, 8)


def test_cutlass_reorders_m16n16_into_what_m16n8_stores():
    """copy_sm100.hpp: bytes 0, 1 of both registers, then bytes 2, 3 of both, match ``stmatrix.m16n8.x2``."""
    case = Case()
    base = case.smem(BYTES[:256])
    rows = np.arange(16)
    order = (rows & 1) | (rows >> 1 & 1) << 3 | (rows >> 2) << 1  # the thread order of the trait's source layout
    address = (base + 16 * np.resize(order, 32)).astype(np.uint32)
    result = case.run("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r60];", r60=address)
    low, high = (result[name].view(np.uint8).reshape(32, 4) for name in ("r0", "r1"))
    first = np.concatenate([low[:, :2], high[:, :2]], axis=1).copy().view(np.uint32).reshape(32)
    second = np.concatenate([low[:, 2:], high[:, 2:]], axis=1).copy().view(np.uint32).reshape(32)
    target = (base + 2048 + 16 * np.arange(32)).astype(np.uint32)
    case.run("stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r60], {%r0, %r1};", r60=target, r0=first, r1=second)
    assert (case.cluster.ctas[0].shared.data[2048 : 2048 + 256] == BYTES[:256]).all()


def test_movmatrix_transposes():
    case = Case()
    value = RNG.integers(0, 1 << 32, 32, dtype=np.uint32)
    result = case.run(
        "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2; movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r1;", r2=value
    )
    matrix = value.view(np.uint16).reshape(8, 8)
    assert (result["r1"].view(np.uint16).reshape(8, 8) == matrix.T).all()
    assert (result["r3"] == value).all()


def test_faults():
    case = Case()
    base = case.smem(BYTES[:512])
    good = (base + 16 * np.arange(32)).astype(np.uint32)
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r60];"
    case.run(load, r60=good)
    odd = good.copy()
    odd[9] += 8
    with pytest.raises(Fault, match="lane 9"):
        case.run(load, r60=odd)
    with pytest.raises(Fault, match="never written"):
        case.run(load, r60=good + 16)
    with pytest.raises(Fault, match="launched with 4096"):
        case.run(load, r60=good + 4096)
    with pytest.raises(Fault, match="only lanes"):
        case.run(load, r60=good, mask=0xFFFF)
    with pytest.raises(Fault, match="not in shared memory"):
        case.run("ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d60];", d60=base)
    case.cluster.ctas[0].shared.opaque[64] = (8, "the mbarrier")
    with pytest.raises(Fault, match="mbarrier at byte 64"):
        case.run(load, r60=good)


def test_rows_that_meet():
    case = Case()
    base = case.cluster.ctas[0].shared.base
    where = np.full(32, base, np.uint32)
    store = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r60], {%r1};"
    case.run(store, r60=where, r1=7)
    assert not case.launch.findings
    case.run(store, r60=where, r1=np.arange(32, dtype=np.uint32))
    assert [f.kind for f in case.launch.findings] == ["lanes-race"]


@pytest.mark.parametrize(
    "text",
    [
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%r60];",
        "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r1, %r2, %r3, %r4}, [%r60];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r60];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b8 {%r1}, [%r60];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8.b4x16_p64 {%r1}, [%r60];",
        "ldmatrix.sync.m8n8.x1.shared.b16 {%r1}, [%r60];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r60], {%r1};",
        "stmatrix.sync.aligned.m16n16.x1.trans.shared.b8 [%r60], {%r1, %r2};",
        "movmatrix.sync.aligned.m8n8.b16 %r1, %r2;",
    ],
)
def test_what_does_not_exist(text):
    with pytest.raises(Unsupported):
        Case().run(text)


def test_conflicts_are_counted_by_rows():
    case = Case()
    base = case.smem(BYTES)
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r60];"
    case.run(load, r60=(base + 16 * np.arange(32)).astype(np.uint32))
    case.run(load, r60=(base + 128 * np.arange(32)).astype(np.uint32))
    counters = case.count()
    assert counters["shared.load.requests"] == 2
    assert counters["shared.load.wavefronts"] == 1 + 8
    assert counters["shared.load.conflicts"] == 7
