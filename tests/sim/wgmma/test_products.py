"""wgmma against products of matrices that were placed element by element."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.wgmma.formats import OPERAND_TYPES
from pytest_nvfp4.sim.wgmma.product import ACCUMULATORS, Product, _aligned_sums, accumulate
from tests.sim.wgmma import case, oracle
from tests.sim.wgmma.images import TYPES, draw, ml_dtypes, steps
from tests.sim.wgmma.oracle import aligned_sum

LAYOUTS = [
    # width, leading, stride as functions of rows; K-major
    (0, 128, 256),
    (0, 2048 + 128, 128),
    (32, 16, 256),
    (64, 16, 512),
    (128, 16, 1024),
]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("width", "leading", "stride"), LAYOUTS)
def test_every_type_and_every_k_major_layout(name, width, leading, stride):
    rng = np.random.default_rng([width, leading, len(name)])
    n = 24
    k = 256 // TYPES[name][1]
    a_codes, a = draw(rng, name, (64, k))
    b_codes, b = draw(rng, name, (n, k))
    image = np.zeros(16384 + 8192, np.uint8)
    layout = {"width": width, "leading": leading, "stride": stride}
    a_at, b_at = oracle.SMEM, oracle.SMEM + 16384
    oracle.place(image, a_codes, address=a_at, **layout)
    oracle.place(image, b_codes, address=b_at, **layout)
    integer = name in ("s8", "u8")
    d = "s32" if integer else "f32"
    flags = "" if integer else "1, 1, 0, 0" if TYPES[name][1] == 16 else "1, 1"
    body = [
        case.FENCE,
        case.wgmma(
            f"m64n{n}k{k}.{d}.{name}.{name}",
            n // 2,
            oracle.descriptor(a_at, **layout),
            oracle.descriptor(b_at, **layout),
            flags=flags,
            scale="0",
        ),
        case.COMMIT,
        case.wait(),
        case.store(20, n // 2),
    ]
    ran = case.run("\n".join(body), image, (128, n // 2))
    got = oracle.from_registers(ran["out"], np.int32 if integer else np.float32)
    assert np.array_equal(got, a @ b.T)
    assert not ran.grid.findings
    assert ran.grid.counters["wgmma.instructions"] == 1
    assert ran.grid.counters["wgmma.macs"] == 64 * n * k
    assert ran.grid.counters["wgmma.fp8.accumulation"] == (name in ("e4m3", "e5m2"))


H200_STARTS = np.load(Path(__file__).with_name("h200_starts.npz"))["chunks"]
"""First chunk of 16 bytes of each row of A, f16, on an H200: ``[swizzle, row of the start, base offset, row of A]``."""


@pytest.mark.parametrize(("index", "width"), [(0, 128), (1, 64), (2, 32)])
@pytest.mark.parametrize("start", range(8))
def test_a_matrix_may_start_in_any_row_of_its_pattern_as_on_an_h200(index, width, start):
    numbers = np.repeat(np.arange(1536), 8).astype(np.float16)
    image = np.concatenate([numbers.view(np.uint8), np.zeros(256, np.uint8)])
    b_at = oracle.SMEM + numbers.nbytes
    oracle.place(image, np.eye(8, 16, dtype=np.float16).view(np.uint16), address=b_at, leading=128, stride=256)
    a = oracle.descriptor(oracle.SMEM + start * width, leading=16, stride=8 * width, width=width)
    b = oracle.descriptor(b_at, leading=128, stride=256)
    body = [case.FENCE]
    for base in range(8):
        wgmma = ("m64n8k16.f32.f16.f16", 4, a | base << 49, b)
        body.append(case.wgmma(*wgmma, flags="1, 1, 0, 0", scale="0", first=20 + 4 * base))
    ran = case.run("\n".join([*body, case.COMMIT, case.wait(), case.store(20, 32)]), image, (128, 32))
    got = [oracle.from_registers(ran["out"][:, 4 * base : 4 * base + 4], np.float32)[:, 0] for base in range(8)]
    assert np.array_equal(got, H200_STARTS[index, start])
    assert not ran.grid.findings


@pytest.mark.parametrize("matrices", ["A", "B", "AB"])
@pytest.mark.parametrize("bit", [None, 14, 31, 46, 52, 61])
def test_reserved_bits_of_a_descriptor_change_nothing_and_are_reported(bit, matrices):
    rng = np.random.default_rng(1)
    a_codes, a = draw(rng, "f16", (64, 16))
    b_codes, b = draw(rng, "f16", (16, 16))
    image = np.zeros(16384, np.uint8)
    layout = {"width": 0, "leading": 128, "stride": 256}
    a_at, b_at = oracle.SMEM, oracle.SMEM + 8192
    oracle.place(image, a_codes, address=a_at, **layout)
    oracle.place(image, b_codes, address=b_at, **layout)
    more = 0 if bit is None else 1 << bit
    bits = [oracle.descriptor(a_at, **layout), oracle.descriptor(b_at, **layout)]
    for matrix in matrices:
        bits["AB".index(matrix)] |= more
    body = [case.FENCE, case.wgmma("m64n16k16.f32.f16.f16", 8, *bits, flags="1, 1, 0, 0", scale="0")]
    ran = case.run("\n".join([*body, case.COMMIT, case.wait(), case.store(20, 8)]), image, (128, 8))
    assert np.array_equal(oracle.from_registers(ran["out"], np.float32), a @ b.T)
    found = [(finding.kind, finding.message) for finding in ran.grid.findings]
    assert [kind for kind, _ in found] == ([] if bit is None else ["reserved-bits"])
    for matrix, value in zip("AB", bits, strict=True):
        named = f"bits {more:#x} of the descriptor {value:#018x} of matrix {matrix}"
        assert all((named in message) == (matrix in matrices) for _, message in found)


MN_LAYOUTS = [
    # width, leading, stride, n
    (0, 4096, 128, 192),
    (32, 512, 8192, 192),
    (64, 1024, 8192, 192),
    (128, 2048, 1024, 192),
    (0, 128, 256, 8),
    (128, 8192, 1024, 40),
]


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("width", "leading", "stride", "n"), MN_LAYOUTS)
def test_mn_major(name, width, leading, stride, n):
    rng = np.random.default_rng(width)
    a_codes, a = draw(rng, name, (64, 16))
    b_codes, b = draw(rng, name, (n, 16))
    image = np.zeros(65536, np.uint8)
    layout = {"width": width, "leading": leading, "stride": stride}
    a_at, b_at = oracle.SMEM, oracle.SMEM + 32768
    oracle.place(image, a_codes, address=a_at, transposed=True, **layout)
    oracle.place(image, b_codes, address=b_at, transposed=True, **layout)
    body = [
        case.FENCE,
        case.wgmma(
            f"m64n{n}k16.f32.{name}.{name}",
            n // 2,
            oracle.descriptor(a_at, **layout),
            oracle.descriptor(b_at, **layout),
            flags="1, 1, 1, 1",
            scale="0",
        ),
        case.COMMIT,
        case.wait(),
        case.store(20, n // 2),
    ]
    ran = case.run("\n".join(body), image, (128, n // 2))
    assert np.array_equal(oracle.from_registers(ran["out"], np.float32), a @ b.T)


@pytest.mark.parametrize("name", TYPES)
def test_a_from_registers(name):
    rng = np.random.default_rng(len(name))
    n, k = 16, 256 // TYPES[name][1]
    a_codes, a = draw(rng, name, (64, k))
    b_codes, b = draw(rng, name, (n, k))
    image = np.zeros(4096, np.uint8)
    oracle.place(image, b_codes, address=oracle.SMEM, width=32, stride=256)
    integer = name in ("s8", "u8")
    bits = TYPES[name][1]
    body = [
        case.load(200, 4, 2),
        case.FENCE,
        case.wgmma(
            f"m64n{n}k{k}.{'s32' if integer else 'f32'}.{name}.{name}",
            n // 2,
            case.registers(200, 4),
            oracle.descriptor(oracle.SMEM, width=32, stride=256),
            flags="" if integer else "-1, 1, 0" if bits == 16 else "-1, 1",
            scale="0",
        ),
        case.COMMIT,
        case.wait(),
        case.store(20, n // 2),
    ]
    ran = case.run("\n".join(body), image, (128, n // 2), extra={"a": oracle.a_registers(a_codes)})
    got = oracle.from_registers(ran["out"], np.int32 if integer else np.float32)
    assert np.array_equal(got, (a if integer else -a) @ b.T)
    assert not ran.grid.findings


@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize("waits", ["one at the end", "after every step"])
def test_a_chain_adds_to_the_registers_that_were_there(d, waits):
    rng = np.random.default_rng(5)
    n = 40
    image, a, b, pairs = steps(rng, "f16", n, 4)
    dtype = np.float32 if d == "f32" else np.float16
    count = n // 2 if d == "f32" else n // 4
    start = rng.integers(-8, 9, size=(64, n)).astype(dtype)
    body = [case.load(20, count, 2), case.FENCE]
    for a_bits, b_bits in pairs:
        body.append(case.wgmma(f"m64n{n}k16.{d}.f16.f16", count, a_bits, b_bits, flags="1, 1, 0, 0"))
        if waits == "after every step":
            body += [case.COMMIT, case.wait()]
    body += [case.COMMIT, case.wait(), case.store(20, count)]
    initial = oracle.to_registers(start)
    ran = case.run("\n".join(body), image, (128, count), extra={"start": initial})
    got = oracle.from_registers(ran["out"], dtype)
    assert np.array_equal(got.astype(np.float64), start.astype(np.float64) + a @ b.T)
    assert not ran.grid.findings


def test_rounding_after_every_instruction_where_order_matters():
    rng = np.random.default_rng(6)
    n = 16
    image, *_ = steps(rng, "f16", n, 4)
    a = rng.normal(size=(64, 64)).astype(np.float16)
    b = (rng.normal(size=(n, 64)) * 2.0 ** rng.integers(-8, 8, size=(n, 64))).astype(np.float16)
    image[:] = 0
    oracle.place(image, a.view(np.uint16), address=oracle.SMEM, width=128, stride=1024)
    oracle.place(image, b.view(np.uint16), address=oracle.SMEM + 8192, width=128, stride=1024)
    body = [case.FENCE]
    for i in range(4):
        pair = [oracle.descriptor(oracle.SMEM + at + 32 * i, width=128, stride=1024) for at in (0, 8192)]
        body.append(case.wgmma(f"m64n{n}k16.f32.f16.f16", n // 2, *pair, flags="1, -1, 0, 0", scale="1" if i else "0"))
    body += [case.COMMIT, case.wait(), case.store(20, n // 2)]
    ran = case.run("\n".join(body), image, (128, n // 2))
    got = oracle.from_registers(ran["out"], np.float32)
    for m, k in itertools.product(range(0, 64, 9), range(n)):
        assert float(got[m, k]) == float(aligned_sum(-a[m], b[k], 0.0, 4, 25, 23, -14))
    once = (-(a.astype(np.float64) @ b.astype(np.float64).T)).astype(np.float32)
    assert not np.array_equal(got, once), "the data do not tell the two apart"


@pytest.mark.parametrize("saturate", [False, True])
def test_integers_wrap_or_saturate_after_every_instruction(saturate):
    n = 8
    rng = np.random.default_rng(7)
    image, *_ = steps(rng, "s8", n, 2)
    a = np.full((64, 64), 127, np.int8)
    a[:, 32:] = -128
    b = np.full((n, 64), 127, np.int8)
    image[:] = 0
    oracle.place(image, a.view(np.uint8), address=oracle.SMEM, width=128, stride=1024)
    oracle.place(image, b.view(np.uint8), address=oracle.SMEM + 8192, width=128, stride=1024)
    start = np.full((64, n), 2**31 - 1000, np.int32)
    start[::2] = -(2**31) + 1000
    opcode = f"m64n{n}k32.s32.s8.s8" + (".satfinite" if saturate else "")
    body = [case.load(20, n // 2, 2), case.FENCE]
    for i in range(2):
        pair = [oracle.descriptor(oracle.SMEM + at + 32 * i, width=128, stride=1024) for at in (0, 8192)]
        body.append(case.wgmma(opcode, n // 2, *pair, flags=""))
    body += [case.COMMIT, case.wait(), case.store(20, n // 2)]
    ran = case.run("\n".join(body), image, (128, n // 2), extra={"start": oracle.to_registers(start)})
    total = start.astype(np.int64)
    for i in range(2):
        total = total + a[:, 32 * i : 32 * i + 32].astype(np.int64) @ b[:, 32 * i : 32 * i + 32].astype(np.int64).T
        total = np.clip(total, -(2**31), 2**31 - 1) if saturate else total.astype(np.int32).astype(np.int64)
    assert np.array_equal(oracle.from_registers(ran["out"], np.int32), total)


@pytest.mark.parametrize(("a_name", "b_name"), [("e4m3", "e5m2"), ("e5m2", "e4m3"), ("s8", "u8"), ("u8", "s8")])
def test_mixed_types(a_name, b_name):
    rng = np.random.default_rng(8)
    a_codes, a = draw(rng, a_name, (64, 32))
    b_codes, b = draw(rng, b_name, (16, 32))
    image = np.zeros(8192, np.uint8)
    oracle.place(image, a_codes, address=oracle.SMEM, width=32, stride=256)
    oracle.place(image, b_codes, address=oracle.SMEM + 4096, width=32, stride=256)
    integer = a_name in ("s8", "u8")
    pair = [oracle.descriptor(oracle.SMEM + at, width=32, stride=256) for at in (0, 4096)]
    opcode = f"m64n16k32.{'s32' if integer else 'f32'}.{a_name}.{b_name}"
    flags = "" if integer else "1, 1"
    body = [case.FENCE, case.wgmma(opcode, 8, *pair, flags=flags, scale="0")]
    body += [case.COMMIT, case.wait(), case.store(20, 8)]
    ran = case.run("\n".join(body), image, (128, 8))
    got = oracle.from_registers(ran["out"], np.int32 if integer else np.float32)
    assert np.array_equal(got, a @ b.T)


def test_every_code_of_fp8_and_f16_nan_and_infinity():
    # Row r of A holds code 4 r .. in its first k, B selects that k.
    for name, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
        for block in range(4):
            a = np.zeros((64, 32), np.uint8)
            a[:, 0] = np.arange(64 * block, 64 * block + 64)
            b = np.zeros((8, 32), np.uint8)
            b[:, 0] = np.array([1.0], np.float32).astype(dtype).view(np.uint8)[0]
            image = np.zeros(8192, np.uint8)
            oracle.place(image, a, address=oracle.SMEM, width=32, stride=256)
            oracle.place(image, b, address=oracle.SMEM + 4096, width=32, stride=256)
            pair = [oracle.descriptor(oracle.SMEM + at, width=32, stride=256) for at in (0, 4096)]
            body = [case.FENCE, case.wgmma(f"m64n8k32.f32.{name}.{name}", 4, *pair, scale="0")]
            body += [case.COMMIT, case.wait(), case.store(20, 4)]
            ran = case.run("\n".join(body), image, (128, 4))
            got = oracle.from_registers(ran["out"], np.float32)[:, 3]
            want = a[:, 0].view(dtype).astype(np.float32)
            assert np.array_equal(got, want, equal_nan=True)
            missing = np.isnan(got)
            assert (got.view(np.uint32)[missing] == 0x7FFF_FFFF).all()


def test_rows_that_nothing_wrote_give_nan_in_their_columns_only():
    rng = np.random.default_rng(9)
    image, a, b, pairs = steps(rng, "f16", 16, 1)
    whole = image.copy()
    body = [case.FENCE, case.wgmma("m64n16k16.f32.f16.f16", 8, *pairs[0], flags="1, 1, 0, 0", scale="0")]
    body += [case.COMMIT, case.wait(), case.store(20, 8)]
    cut = whole[: 8192 + 1024 + 4 * 128]
    ran = case.run("\n".join(body), cut, (128, 8), shared=whole.size)
    got = oracle.from_registers(ran["out"], np.float32)
    assert np.array_equal(got[:, :12], (a @ b.T)[:, :12])
    assert np.isnan(got[:, 12:]).all()
    assert ran.grid.counters["wgmma.undefined.instructions"] == 1


@pytest.mark.parametrize(
    ("opcode", "flags", "message"),
    [
        ("m64n16k16.f32.f16.bf16", "1, 1, 0, 0", "types"),
        ("m64n12k16.f32.f16.f16", "1, 1, 0, 0", "shape"),
        ("m64n16k8.f32.f16.f16", "1, 1, 0, 0", "shape"),
        ("m64n16k16.f32.f16.f16", "2, 1, 0, 0", "imm-scale"),
        ("m64n16k16.f32.f16.f16", "1, 1, 0, 2", "imm-trans"),
        ("m64n16k16.f32.f16.f16", "1, 1", "operands"),
        ("m64n16k256.s32.b1.b1.and.popc", "", "modelled"),
        ("m64n40k32.s32.s8.s8", "", "shape"),
        ("m64n16k8.f32.tf32.tf32", "1, 1, 0, 0", "operands"),
    ],
)
def test_what_is_not_modelled_is_unsupported(opcode, flags, message):
    count = 20 if "n40" in opcode else 8
    body = [case.FENCE, case.wgmma(opcode, count, 64, 64, flags=flags)]
    with pytest.raises(Unsupported, match=message):
        case.run("\n".join(body), np.zeros(4096, np.uint8), (128, 8))


def test_sparse_a_is_refused_by_name():
    dense = case.wgmma("m64n16k16.f32.f16.f16", 8, 64, 64, flags="1, 1, 0, 0")
    with pytest.raises(Unsupported, match="sparse A"):
        case.run(case.FENCE + dense.replace("async.sync", "async.sp.sync"), np.zeros(4096, np.uint8), (128, 8))


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (oracle.descriptor(1024 + 112, width=128, stride=1024), "run past the end"),
        (oracle.descriptor(1024, width=128, stride=4096), "covers bytes"),
        (oracle.descriptor(0, width=128, stride=1024), "covers bytes"),
    ],
)
def test_illegal_descriptors(bits, message):
    image = np.zeros(16384, np.uint8)
    good = oracle.descriptor(oracle.SMEM, width=128, stride=1024)
    body = [case.FENCE, case.wgmma("m64n16k16.f32.f16.f16", 8, bits, good, flags="1, 1, 0, 0")]
    with pytest.raises(Fault, match=message):
        case.run("\n".join(body), image, (128, 8))


@pytest.mark.parametrize("span", [2, 6, 10, 12])
@pytest.mark.parametrize("kind", ["f16", "e4m3"])
def test_what_the_bound_of_an_element_leaves_open_is_all_that_is_rounded(kind, span):
    """The sums of all elements, each rounded as wgmma does, have the same bits; rows and columns differ in scale."""
    rng = np.random.default_rng(span)
    form, shape = OPERAND_TYPES[kind], (64, 32)
    start: np.ndarray | None = None
    opened = []
    for _ in range(6):
        codes = []
        for rows in shape:
            scales = 2.0 ** rng.integers(-span // 2, span // 2 + 1, (rows, 1))
            values = rng.choice([0, 0, 0.5, 1.5, 6], (rows, 64)) * rng.choice([-1, 1], (rows, 64)) * scales
            codes.append(
                values.astype(np.float16).view(np.uint16) if kind == "f16" else E4M3.encode(values).astype(np.uint8)
            )
        made = Product(*codes, a_format=form, b_format=form, count=2)
        every = np.zeros(shape) if start is None else start.astype(np.float64)
        a, b = made.factors
        expected = _aligned_sums(
            a[:, :, None], b[:, None, :], every, made.aligned, ACCUMULATORS["f32"], count=2
        ).astype(np.float32)
        opened.append(made.open(start, ACCUMULATORS["f32"], rows=slice(None)).mean())
        start = accumulate(made, start, ACCUMULATORS["f32"], rows=slice(None))
        assert np.array_equal(start.view(np.uint32), expected.view(np.uint32))
    assert (max(opened) > 0) == (kind == "e4m3" or span > 6)
