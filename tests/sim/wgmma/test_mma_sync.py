"""mma.sync through PTX, its fragments made element by element from the ISA's formulas."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from tests.sim.wgmma import oracle
from tests.sim.wgmma.mma_sync import TYPES, b_place, draw, pack, run

CASES = [
    (a, b, d, 256 // TYPES[a][1] // part)
    for a, b, ds in [
        ("f16", "f16", ("f16", "f32")),
        ("bf16", "bf16", ("f32",)),
        ("tf32", "tf32", ("f32",)),
        ("e4m3", "e4m3", ("f16", "f32")),
        ("e4m3", "e5m2", ("f32",)),
        ("e5m2", "e5m2", ("f32",)),
        ("s8", "s8", ("s32",)),
        ("u8", "s8", ("s32",)),
    ]
    for d in ds
    for part in (1, 2)
]


@pytest.mark.parametrize(("a_name", "b_name", "d", "k"), CASES)
def test_every_form(a_name, b_name, d, k):
    rng = np.random.default_rng(k)
    a_codes, a = draw(rng, a_name, (16, k))
    b_codes, b = draw(rng, b_name, (k, 8))
    bits = TYPES[a_name][1]
    d_type = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    c = rng.integers(-9, 10, size=(16, 8)).astype(d_type)
    a_registers = pack(a_codes, oracle.A_PLACES[bits], k * bits // 64)
    b_registers = pack(b_codes, lambda lane, i: b_place(lane, i, bits), k * bits // 128)
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.{d}.{a_name}.{b_name}.{d}"
    ran = run(opcode, a_registers, b_registers, oracle.to_registers(c))
    assert np.array_equal(oracle.from_registers(ran["d"], d_type).astype(np.float64), a @ b + c)
    assert ran.grid.counters["mma.instructions"] == 1
    assert ran.grid.counters["mma.macs"] == 16 * 8 * k


def test_the_sum_is_truncated():
    a = np.zeros((16, 16), np.float16)
    b = np.zeros((16, 8), np.float16)
    a[:, 0], b[0, :] = 2.0**-13, 2.0**-12  # 2^-25, a quarter of a unit of 1
    a[0, 1], b[1, 0] = 2.0**-12, 2.0**-12  # three quarters with it
    a[1, 1] = 3 * 2.0**-13  # a whole unit with it
    a[2, 0] = -(2.0**-13)
    c = np.ones((16, 8), np.float32)
    place = oracle.a_place_16
    got = run(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        pack(a.view(np.uint16), place, 4),
        pack(b.view(np.uint16), lambda lane, i: b_place(lane, i, 16), 2),
        oracle.to_registers(c),
    )
    d = oracle.from_registers(got["d"], np.float32)
    assert d[0, 0] == 1.0
    assert d[1, 0] == np.float32(1 + 2.0**-23)
    assert d[2, 0] == np.float32(1 - 2.0**-24)
    assert d[5, 5] == 1.0


@pytest.mark.parametrize(("suffix", "want"), [("", -(2**31) + 32 * 16 - 1), (".satfinite", 2**31 - 1)])
def test_integers_wrap_or_saturate(suffix, want):
    a = pack(np.full((16, 32), 4, np.uint8), oracle.a_place_8, 4)
    b = pack(np.full((32, 8), 4, np.uint8), lambda lane, i: b_place(lane, i, 8), 2)
    c = oracle.to_registers(np.full((16, 8), 2**31 - 1, np.int32))
    ran = run(f"mma.sync.aligned.m16n8k32.row.col{suffix}.s32.s8.u8.s32", a, b, c)
    assert (ran["d"].view(np.int32) == want).all()


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.kind::i8.s32.s8.s8.s32",
        "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32",
    ],
)
def test_what_is_not_modelled_is_unsupported(opcode):
    four, two = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    with pytest.raises(Unsupported) as caught:
        run(opcode, four, two, four)
    assert ("sparse A" in caught.value.message) == opcode.startswith("mma.sp")


def test_all_lanes_must_be_there():
    four, two = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    with pytest.raises(Fault, match="all 32"):
        run(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            four,
            two,
            four,
            body="setp.lt.u32 %p5, %r1, 7;\n@%p5 {}",
        )
