"""Packing that is put off until it is needed, in blocks as the compiler makes them."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.lower.apart import apart_slots
from pytest_nvfp4.sim.lower.packs import Packs
from pytest_nvfp4.sim.ptx.parser import parse
from tests.sim.ptx_case import run_ptx

HEADER = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry k() { .reg .b16 %rs<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>; BODY }
"""
THREADS = 32
_HEAD = "mov.u32 %r1, %tid.x; add.s32 %r2, %r1, 100; mul.wide.u32 %rd1, %r1, 8; add.s64 %rd2, %rd100, %rd1;\n"
LANES = np.arange(THREADS, dtype=np.uint64)
LOW, HIGH = LANES, LANES + np.uint64(100)
PACKED = LOW | HIGH << np.uint64(32)


def out(body: str) -> np.ndarray:
    """Run a body that leaves its answer in %rd3, one a lane; %r1 is the lane and %r2 that plus 100."""
    ran = run_ptx(
        f"{_HEAD}{body}\nst.global.b64 [%rd2], %rd3;\n", buffers={"out": np.zeros(THREADS, np.uint64)}, block=(32, 1, 1)
    )
    return ran["out"]


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("mov.b64 %rd3, {%r1, %r2};", PACKED),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};", PACKED),
        ("mov.b64 %rd3, {%r1, %r2}; add.s32 %r1, %r1, 7; add.s32 %r2, %r2, 9;", PACKED),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b32 %r1, 5; mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};", PACKED),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b64 {%r2, %r1}, %rd4; mov.b64 %rd3, {%r2, %r1};", PACKED),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b64 {%r2, %r1}, %rd4; mov.b64 %rd3, {%r1, %r2};", HIGH | LOW << np.uint64(32)),
        ("mov.b64 %rd3, {%r1, %r2}; mov.b64 %rd3, {%r2, %r1};", HIGH | LOW << np.uint64(32)),
        ("mov.b64 %rd3, {%r1, %r2}; bra NEXT; NEXT: add.s64 %rd3, %rd3, 0;", PACKED),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b64 {_, %r3}, %rd4; cvt.u64.u32 %rd3, %r3;", HIGH),
        ("mov.b64 %rd3, {%r1, 7};", LOW | np.uint64(7 << 32)),
        ("mov.b32 %r3, 5; mov.b64 %rd4, {%r3, 7}; mov.b64 {%r4, %r5}, %rd4; mov.b64 %rd3, {%r4, %r5};", 5 | 7 << 32),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b64 %rd5, 0; add.rn.f32x2 %rd3, %rd4, %rd5;", PACKED),
        (
            "mov.b64 %rd4, {%r1, %r2}; mov.b64 %rd5, {0, 0}; add.rn.f32x2 %rd4, %rd4, %rd5; mov.b64 {%r3, %r4}, %rd4; "
            "mov.b64 %rd3, {%r4, %r3};",
            HIGH | LOW << np.uint64(32),
        ),
        ("mov.b64 %rd4, {%r1, %r2}; add.rn.f32x2 %rd3, %rd4, 0;", PACKED),
        ("mov.b64 %rd4, {%r1, %r2}; mov.b64 {%rs1, %rs2, %rs3, %rs4}, %rd4; cvt.u64.u16 %rd3, %rs3;", HIGH),
        (
            "mov.b64 %rd3, {%r1, %r2}; setp.lt.u32 %p1, %r1, 9; @%p1 mov.b64 %rd3, {%r2, %r1};",
            np.where(LANES < 9, HIGH | LOW << np.uint64(32), PACKED),
        ),
        (
            "mov.b64 %rd3, {%r1, %r2}; setp.lt.u32 %p1, %r1, 9; @!%p1 bra END; mov.b32 %r1, 3; "
            "mov.b64 %rd3, {%r1, %r1}; END: mov.b64 {%r3, %r4}, %rd3; mov.b64 %rd3, {%r3, %r4};",
            np.where(LANES < 9, np.uint64(3 | 3 << 32), PACKED),
        ),
        (
            "mov.b64 %rd4, {%r1, %r2}; setp.lt.u32 %p1, %r1, 9; @!%p1 bra END; mov.b32 %r1, 3; "
            "END: mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};",
            PACKED,
        ),
        (
            "mov.b64 %rd4, {%r1, %r2}; setp.lt.u32 %p1, %r1, 0; @!%p1 bra END; add.s64 %rd5, %rd4, 1; "
            "st.global.b64 [%rd2], %rd5; END: mov.b64 %rd3, %rd4;",
            PACKED,
        ),
        ("mov.b64 %rd4, {%r1, %r2}; bra NEXT; NEXT: mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};", PACKED),
        (
            "mov.b64 %rd4, %rd5; mov.b64 %rd4, {%r1, 7}; mov.b64 %rd5, %rd4; bra NEXT; NEXT: mov.b64 %rd4, %rd5; "
            "mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};",
            LOW | np.uint64(7 << 32),
        ),
        (
            "mov.b64 %rd4, {%r1, %r2}; setp.lt.u32 %p1, %r1, 9; @!%p1 bra END; mov.b64 %rd4, {%r2, 3}; "
            "END: mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};",
            np.where(LANES < 9, HIGH | np.uint64(3 << 32), PACKED),
        ),
        (
            "mov.b64 %rd4, {%r1, %r2}; setp.lt.u32 %p1, %r1, 9; @%p1 bra LOW; bra END; LOW: mov.b64 %rd4, {%r2, %r2}; "
            "mov.b32 %r5, 0; LOOP: add.s32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, %r1; @%p2 bra LOOP; "
            "mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd4, {%r5, %r4}; "
            "END: mov.b64 {%r3, %r4}, %rd4; mov.b64 %rd3, {%r3, %r4};",
            np.where(LANES < 9, np.maximum(LANES, np.uint64(1)) | HIGH << np.uint64(32), PACKED),
        ),
    ],
)
@pytest.mark.parametrize("before", ["", "tcgen05.fence::before_thread_sync; "])
def test_a_pack_is_what_it_was_when_it_was_made(before: str, body: str, want: np.ndarray | int) -> None:
    """In kernels that use tensor memory, a register that nothing else reads or writes holds its items (``apart``)."""
    assert (out(before + body) == want).all()


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("mov.b64 %rd1, {%r1, %r2}; mov.b64 {_, %r3}, %rd1;", {"%rd1"}),
        ("mov.b64 %rd1, {%r1, %r2}; mov.b64 {%rs1, %rs2, %rs3, %rs4}, %rd1;", set()),
        ("mov.b64 %rd1, {%r1, %r2}; add.s64 %rd2, %rd1, 1;", set()),
        ("mov.b64 %rd1, {%r1, %r2}; @%p1 mov.b64 %rd1, {%r2, %r1};", set()),
        ("mov.b64 %rd1, {%r1, %r2}; mov.b64 %rd2, %rd1; mov.b64 %rd3, %rd2;", {"%rd1", "%rd2", "%rd3"}),
        ("mov.b64 %rd1, {%r1, %r2}; mov.b64 %rd2, %rd1; mov.b64 %rd3, %rd2; add.s64 %rd3, %rd3, 1;", set()),
        ("mov.b64 %rd1, 0; mov.b64 {%r1, %r2}, %rd1;", set()),
        ("mov.b64 %rd1, {%r1, %r2}; fma.rn.f32x2 %rd2, %rd1, %rd1, %rd3;", {"%rd1", "%rd2", "%rd3"}),
        ("mov.b64 %rd1, {%r1, %r2}; mul.rn.f32x2 %rd2, %rd1, %rd3; add.s64 %rd3, %rd3, 1;", set()),
        ("mov.b64 %rd1, {%r1, %r2}; mul.rn.f32x2 %rd2, %rd1, 0x3f8000003f800000;", set()),
        ("mov.b64 %rd1, {%r1, %r2}; @%p1 add.rn.f32x2 %rd2, %rd1, %rd1;", set()),
    ],
)
@pytest.mark.parametrize("tensor", [True, False])
def test_which_registers_hold_their_items(tensor: bool, body: str, want: set[str]) -> None:
    text = f"{'tcgen05.fence::before_thread_sync;' * tensor} {body} ret;"
    (kernel,) = parse(HEADER.replace("BODY", text)).kernels.values()
    assert {kernel.registers[slot].name for slot in apart_slots(kernel)} == (want if tensor else set())


def test_a_pack_that_nothing_reads_is_not_written() -> None:
    lines: list[tuple[int, str]] = []
    packs = Packs(lambda slot, text: lines.append((slot, text)))
    packs.add(9, "pack", ("v1", "v2"), (1, 2), bits=32)
    assert packs.items(9, bits=32) == ("v1", "v2")
    assert packs.items(9, bits=16) is None
    assert not lines
    packs.need(9)
    packs.need(9)
    assert lines == [(9, "pack")]
    assert packs.items(9, bits=32) == ("v1", "v2")
    packs.overwritten(2)
    assert packs.items(9, bits=32) is None
    assert lines == [(9, "pack")]


def test_a_pack_is_written_before_its_items_change() -> None:
    lines: list[tuple[int, str]] = []
    packs = Packs(lambda slot, text: lines.append((slot, text)))
    packs.add(9, "nine", ("v1", "v2"), (1, 2), bits=32)
    packs.add(8, "eight", ("v3", "v4"), (3, 4), bits=32)
    packs.overwritten(1)
    assert lines == [(9, "nine")]
    packs.overwritten(8)
    packs.need_all()
    assert lines == [(9, "nine")]
