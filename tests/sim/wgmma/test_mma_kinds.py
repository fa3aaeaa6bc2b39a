"""``mma.sync`` of sm_120 against exact rationals: FP4 with scale factors, and 8-bit containers."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from tests.sim.wgmma import oracle
from tests.sim.wgmma.kind_case import DTYPES, d_of, exact, registers, run, scale_register, values_of

SCALED = [
    # kind, size, scale type, A, B, byte-id and thread-id of A and of B
    ("mxf4nvf4", "scale_vec::4X", "ue4m3", "e2m1", "e2m1", (0, 0), (0, 0)),
    ("mxf4nvf4", "scale_vec::4X", "ue4m3", "e2m1", "e2m1", (0, 1), (0, 1)),
    ("mxf4nvf4", "scale_vec::4X", "ue8m0", "e2m1", "e2m1", (0, 1), (0, 3)),
    ("mxf4nvf4", "scale_vec::2X", "ue8m0", "e2m1", "e2m1", (2, 0), (0, 2)),
    ("mxf4", "scale_vec::2X", "ue8m0", "e2m1", "e2m1", (0, 1), (2, 0)),
    ("mxf4", "", "ue8m0", "e2m1", "e2m1", (2, 1), (2, 1)),
    ("mxf8f6f4", "scale_vec::1X", "ue8m0", "e4m3", "e5m2", (3, 0), (1, 1)),
    ("mxf8f6f4", "", "ue8m0", "e3m2", "e2m1", (0, 1), (2, 0)),
]
WIDTH = {"e2m1": 4, "e2m3": 6, "e3m2": 6, "e4m3": 8, "e5m2": 8}


def draw(rng: np.random.Generator, name: str, rows: int, k: int) -> np.ndarray:
    codes = rng.integers(0, 1 << WIDTH[name], (rows, k), dtype=np.uint8)
    return codes if WIDTH[name] < 8 else codes & np.uint8(0xBF)  # neither NaN nor infinity


def operand(codes: np.ndarray, name: str, *, packed: bool, of_a: bool) -> np.ndarray:
    count = 4 if of_a else 2
    if packed:
        return registers(codes, 4, count, of_a=of_a, shift=0, noise=0)
    shift, noise = {"e2m1": (2, 0xC3), "e2m3": (0, 0xC0), "e3m2": (0, 0xC0)}.get(name, (0, 0))
    return registers(codes, 8, count, of_a=of_a, shift=shift, noise=noise)


@pytest.mark.parametrize(("kind", "size", "scale", "a_name", "b_name", "a_id", "b_id"), SCALED)
def test_every_scaled_form(kind, size, scale, a_name, b_name, a_id, b_id):
    rng = np.random.default_rng(len(kind + size) + a_id[0])
    packed = kind.startswith("mxf4")
    k, vector = (64 if packed else 32), {"scale_vec::4X": 4, "scale_vec::2X": 2}.get(size, 2 if packed else 1)
    a, b = draw(rng, a_name, 16, k), draw(rng, b_name, 8, k)
    low, high = (0x20, 0x60) if scale == "ue4m3" else (115, 138)
    sa, sb = (rng.integers(low, high, (rows, vector), dtype=np.uint8) for rows in (16, 8))
    c = rng.standard_normal((16, 8)).astype(np.float32)
    text = ".".join(part for part in (f"kind::{kind}", "block_scale", size) if part)
    ran = run(
        f"mma.sync.aligned.m16n8k{k}.row.col.{text}.f32.{a_name}.{b_name}.f32.{scale}",
        operand(a, a_name, packed=packed, of_a=True),
        operand(b, b_name, packed=packed, of_a=False),
        oracle.to_registers(c),
        [
            (scale_register(sa, of_a=True, byte=a_id[0], thread=a_id[1]), f"{a_id[0]}, {a_id[1]}"),
            (scale_register(sb, of_a=False, byte=b_id[0], thread=b_id[1]), f"{b_id[0]}, {b_id[1]}"),
        ],
    )
    scaled_a = values_of(a_name, a) * np.repeat(values_of(scale, sa), k // vector, axis=1)
    scaled_b = values_of(b_name, b) * np.repeat(values_of(scale, sb), k // vector, axis=1)
    assert np.array_equal(d_of(ran, np.float32), exact(scaled_a, scaled_b, c))
    assert ran.grid.counters["mma.macs"] == 16 * 8 * k


@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize(("a_name", "b_name"), [("e2m1", "e3m2"), ("e2m3", "e2m1"), ("e4m3", "e5m2")])
def test_containers_without_scale_factors(a_name, b_name, d):
    rng = np.random.default_rng(5)
    a, b = draw(rng, a_name, 16, 32), draw(rng, b_name, 8, 32) & np.uint8(0xB8 if b_name == "e5m2" else 0xFF)
    c = rng.integers(-4, 5, (16, 8)).astype({"f32": np.float32, "f16": np.float16}[d])
    ran = run(
        f"mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.{d}.{a_name}.{b_name}.{d}",
        operand(a, a_name, packed=False, of_a=True),
        operand(b, b_name, packed=False, of_a=False),
        oracle.to_registers(c),
        [],
    )
    want = exact(values_of(a_name, a), values_of(b_name, b), c.astype(np.float32))
    assert np.array_equal(d_of(ran, c.dtype.type), want.astype(c.dtype).astype(np.float64))


NVFP4 = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"


@pytest.mark.parametrize(
    ("selectors", "said"),
    [("%rs2, %rs1", "byte-id 1"), ("%rs1, %rs3", "thread-id None"), ("0, 2", "thread-id 2"), ("%rs1, %rs2", "")],
)
def test_selectors_are_checked(selectors, said):
    four, two, one = (np.zeros((32, n), np.uint32) for n in (4, 2, 1))
    if not said:
        assert not run(NVFP4, four, two, four, [(one, selectors), (one, "0, 0")])["d"].any()
        return
    with pytest.raises(Fault, match=said) as caught:
        run(NVFP4, four, two, four, [(one, selectors), (one, "0, 0")])
    assert caught.value.kind == "mma"


def test_a_factor_that_is_not_a_number_gives_one():
    four, two = np.full((32, 4), 0x22222222, np.uint32), np.full((32, 2), 0x22222222, np.uint32)
    scales = np.full((32, 1), 0x38383838, np.uint32)
    scales[5 * 4] = 0x387F3838  # row 5
    d = run(
        NVFP4, four, two, np.zeros((32, 4), np.uint32), [(scales, "0, 0"), (np.full_like(scales, 0x38383838), "0, 0")]
    )
    rows = oracle.from_registers(d["d"], np.float32)
    assert np.isnan(rows[5]).all()
    assert (np.delete(rows, 5, axis=0) == 64).all()
    assert DTYPES["ue4m3"]


@pytest.mark.parametrize(
    "opcode",
    [
        NVFP4.replace(".scale_vec::4X", ""),
        NVFP4.replace("4X", "2X"),
        NVFP4.replace("k64", "k32"),
        NVFP4.replace(".block_scale", ""),
        NVFP4.replace("e2m1.e2m1", "e2m1.e4m3"),
        NVFP4.replace("mxf4nvf4", "mxf8f6f4"),
        "mma.sp.sync.aligned" + NVFP4.removeprefix("mma.sync.aligned").replace("k64", "k128"),
    ],
)
def test_illegal_combinations_are_refused_by_name(opcode):
    four, two, one = (np.zeros((32, n), np.uint32) for n in (4, 2, 1))
    with pytest.raises(Unsupported) as caught:
        run(opcode, four, two, four, [(one, "0, 0"), (one, "0, 0")])
    assert opcode in caught.value.message
    assert ("sparse A" in caught.value.message) == opcode.startswith("mma.sp")
