"""Operands in shared memory against the figures' permutations, byte by byte."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tcgen05.descriptor import decode_matrix
from pytest_nvfp4.sim.tcgen05.operand import SharedChunks, geometry
from tests.sim.tcgen05.harness import make_ctas, matrix_bits
from tests.sim.tcgen05.operand_case import gather
from tests.sim.tcgen05.places import PITCH, k_major, mn_major


@settings(max_examples=40, deadline=None)
@given(
    swizzle=st.sampled_from([0, 2, 4, 6]),
    rows=st.sampled_from([8, 16, 24, 64, 128, 256]),
    start=st.sampled_from([1024, 2048, 9216]),
    gap=st.sampled_from([0, 1024, 4096]),
    step=st.integers(0, 3),
)
def test_k_major(swizzle: int, rows: int, start: int, gap: int, step: int) -> None:
    [cta] = make_ctas()
    data = np.random.default_rng(rows).integers(0, 256, (rows, 32), dtype=np.uint8)
    pitch = PITCH.get(swizzle, 16)
    advance = 32 * (step % (pitch // 32)) if swizzle else 0
    stride = 8 * pitch + gap
    leading = 128 * 40 if swizzle == 0 and gap == 0 else 16 * 12
    if swizzle == 0:
        stride, leading = (128, 128 * 40) if gap == 0 else (256, 128)
    at = [
        start - 1024 + k_major(r, k + advance, swizzle=swizzle, stride=stride, leading=leading)
        for r in range(rows)
        for k in range(32)
    ]
    assert len(set(at)) == rows * 32
    cta.shared.data[at] = data.ravel()
    cta.shared.written[at] = True
    bits = matrix_bits(start + advance, leading=leading, stride=stride, swizzle=swizzle)
    assert (gather(cta, bits, rows=rows) == data).all()


@settings(max_examples=40, deadline=None)
@given(
    swizzle=st.sampled_from([0, 1, 2, 4, 6]),
    rows=st.sampled_from([64, 128, 256]),
    size=st.sampled_from([1, 2]),
    start=st.sampled_from([1024, 5120]),
)
def test_mn_major(swizzle: int, rows: int, size: int, start: int) -> None:
    [cta] = make_ctas()
    if swizzle == 1:
        size = 4
    count = 32 // size
    data = np.random.default_rng(rows).integers(0, 256, (rows, count, size), dtype=np.uint8)
    pitch = PITCH.get(swizzle, 16)
    atom = 4 if swizzle == 1 else 8
    if swizzle:
        stride = atom * pitch
        leading = stride * (count // atom + (1 if count % atom else 0))
    else:
        leading, stride = 128, 128 * max(1, count // 8)
    at = [
        start - 1024 + mn_major(r, k, size, swizzle=swizzle, stride=stride, leading=leading) + i
        for r in range(rows)
        for k in range(count)
        for i in range(size)
    ]
    assert len(set(at)) == rows * 32
    cta.shared.data[at] = data.ravel()
    cta.shared.written[at] = True
    bits = matrix_bits(start, leading=leading, stride=stride, swizzle=swizzle)
    found = gather(cta, bits, rows=rows, mn=True, size=size)
    assert (found.reshape(rows, count, size) == data).all()


def test_the_version_of_a_descriptor_is_1_or_left_out() -> None:
    """CUTLASS writes version 1 in bits 46-48; Triton wrote none until 3.5, and its kernels run on B200s."""
    bits = matrix_bits(1024, stride=1024, swizzle=2)
    assert bits >> 46 & 7 == 1
    plain, left_out = (decode_matrix(value, "test") for value in (bits, bits & ~(7 << 46)))
    assert str(left_out) == str(plain)
    for version in (2, 3, 4, 7):
        with pytest.raises(Fault, match="bits 46-48") as caught:
            decode_matrix(bits & ~(7 << 46) | version << 46, "test")
        assert caught.value.kind == "descriptor"


def test_a_base_offset_counts_with_a_swizzle_only() -> None:
    """Triton sets it by the address where it copies scale factors, which have no swizzle."""
    plain, swizzled = (matrix_bits(1024 + 512, stride=128, swizzle=code) for code in (0, 2))
    assert decode_matrix(plain | 4 << 49, "test") == decode_matrix(plain, "test")
    with pytest.raises(Unsupported, match="base offset 4"):
        decode_matrix(swizzled | 4 << 49, "test")


def test_a_byte_that_was_never_written() -> None:
    [cta] = make_ctas()
    cta.shared.written[:16384] = True
    bits = matrix_bits(1024, stride=1024, swizzle=2)
    gather(cta, bits, rows=128)
    cta.shared.written[k_major(77, 21, swizzle=2, stride=1024)] = False
    with pytest.raises(Fault, match="never written") as caught:
        gather(cta, bits, rows=128)
    assert caught.value.kind == "uninitialised"
    assert f"byte {k_major(77, 21, swizzle=2, stride=1024)} " in caught.value.message
    cta.shared.written[k_major(3, 4, swizzle=2, stride=1024)] = False
    table = geometry(decode_matrix(bits, "test"), rows=128, mn=False, element_bytes=1, what="test")
    _, unwritten = SharedChunks(cta.shared).check(1024, table, what="test")
    assert unwritten is not None
    assert np.flatnonzero(unwritten.rows).tolist() == [3, 77]
    hole = k_major(3, 4, swizzle=2, stride=1024)
    cta.shared.in_flight[0] = SimpleNamespace(start=hole, size=1, name="a copy")  # type: ignore[assignment]
    with pytest.raises(Fault, match=r"a copy to bytes .* is in flight"):
        SharedChunks(cta.shared).check(1024, table, what="test")


def test_a_hole_outside_the_slice_is_nobodys_business() -> None:
    [cta] = make_ctas()
    cta.shared.written[:16384] = True
    cta.shared.written[k_major(3, 40, swizzle=2, stride=1024)] = False
    gather(cta, matrix_bits(1024, stride=1024, swizzle=2), rows=128)
    with pytest.raises(Fault, match="never written"):
        gather(cta, matrix_bits(1024 + 32, stride=1024, swizzle=2), rows=128)


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (matrix_bits(1024 + 196608 - 4096, stride=1024, swizzle=2), "out-of-bounds"),
        (matrix_bits(0, stride=1024, swizzle=2), "out-of-bounds"),
        (matrix_bits(1024 + 112, stride=1024, swizzle=2), "descriptor"),
        (matrix_bits(1024 + 48, stride=512, swizzle=4), "descriptor"),
        (matrix_bits(1024, stride=1024, swizzle=3), "descriptor"),
        (matrix_bits(1024, stride=1024, swizzle=2) | (1 << 47), "descriptor"),
        (matrix_bits(1024, stride=1024, swizzle=2) | 1 << 48, "descriptor"),
        (matrix_bits(1024, stride=1024, swizzle=2) | 1 << 14, "descriptor"),
        (matrix_bits(1024, stride=1024, swizzle=2) | 1 << 31, "descriptor"),
        (matrix_bits(1024, stride=1024, swizzle=2) | 1 << 60, "descriptor"),
        (matrix_bits(1024, stride=16) | 1 << 52, "unsupported"),
        (matrix_bits(1024, stride=1024, swizzle=2) | 3 << 49, "unsupported"),
        (matrix_bits(1024, stride=1024, swizzle=1), "unsupported"),
    ],
)
def test_what_is_refused(bits: int, kind: str) -> None:
    [cta] = make_ctas()
    cta.shared.written[:] = True
    with pytest.raises(Fault) as caught:
        gather(cta, bits, rows=128)
    assert caught.value.kind == kind


@pytest.mark.parametrize(("swizzle", "mask"), [(2, 0x70), (4, 0x30), (6, 0x10)])
@pytest.mark.parametrize("start", [1024 + 640, 1024 + 128, 1024 + 384])
def test_the_swizzle_acts_on_absolute_addresses(swizzle: int, mask: int, start: int) -> None:
    [cta] = make_ctas()
    pitch = PITCH[swizzle]
    data = np.random.default_rng(start).integers(0, 256, (128, 32), dtype=np.uint8)
    for r in range(128):
        for k in range(32):
            address = start + r * pitch + k
            address ^= address >> 3 & mask
            cta.shared.data[address - 1024] = data[r, k]
            cta.shared.written[address - 1024] = True
    assert (gather(cta, matrix_bits(start, stride=8 * pitch, swizzle=swizzle), rows=128) == data).all()


def test_the_start_inside_a_row_must_leave_32_bytes() -> None:
    [cta] = make_ctas()
    cta.shared.written[:] = True
    for advance in (0, 16, 32, 96):
        gather(cta, matrix_bits(1024 + advance, stride=1024, swizzle=2), rows=8)


def test_mn_major_of_four_bytes_needs_its_own_swizzle() -> None:
    [cta] = make_ctas()
    cta.shared.written[:] = True
    with pytest.raises(Fault, match="32B atoms"):
        gather(cta, matrix_bits(1024, stride=1024, leading=1024, swizzle=2), rows=64, mn=True, size=4)
    with pytest.raises(Fault, match="32B atoms"):
        gather(cta, matrix_bits(1024, stride=1024, leading=1024, swizzle=1), rows=64, mn=True, size=2)


def test_unsupported_is_a_fault_of_its_own() -> None:
    assert issubclass(Unsupported, Fault)
