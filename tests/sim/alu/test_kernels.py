"""Arithmetic inside whole kernels: across blocks, in lanes that part, and in the registers that kernels use."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from tests.sim.ptx_case import run_ptx

EACH = """
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd1, %r1, 4;
add.s64 %rd2, %rd100, %rd1;
add.s64 %rd3, %rd101, %rd1;
ld.global.b32 %r2, [%rd2];
"""


def test_the_carry_flag_lives_across_branches_and_lanes_that_part() -> None:
    values = np.array([0xFFFF_FFFF - lane % 3 for lane in range(32)], np.uint32)
    ran = run_ptx(
        EACH
        + """
        add.cc.u32 %r3, %r2, 1;
        setp.lt.u32 %p1, %r1, 16;
        @%p1 bra LOW;
        addc.u32 %r4, 100, 0;
        bra.uni DONE;
        LOW: addc.u32 %r4, 200, 0;
        DONE: st.global.b32 [%rd3], %r4;
        """,
        buffers={"x": values, "y": np.zeros(32, np.uint32)},
    )
    lanes = np.arange(32)
    assert (ran["y"] == np.where(lanes < 16, 200, 100) + (lanes % 3 == 0)).all()


def test_a_quantiser_packs_e2m1_through_8_bit_registers() -> None:
    values = np.random.default_rng(3).normal(0, 3, 64).astype(np.float32)
    ran = run_ptx(
        """
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %rd1, %r1, 8;
        add.s64 %rd2, %rd100, %rd1;
        add.s64 %rd3, %rd101, %rd1;
        ld.global.v2.b32 {%r2, %r3}, [%rd2];
        {
        .reg .b8 lo, hi;
        cvt.rn.satfinite.e2m1x2.f32 lo, %r3, %r2;
        cvt.rn.satfinite.e2m1x2.f32 hi, %r2, %r3;
        mov.b32 %r4, {lo, hi, lo, hi};
        }
        st.global.b32 [%rd3], %r4;
        """,
        buffers={"x": values, "y": np.zeros(64, np.uint32)},
    )
    codes = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(32, 2).astype(np.uint32)
    low, high = codes[:, 0] | codes[:, 1] << 4, codes[:, 1] | codes[:, 0] << 4
    assert (ran["y"][::2] == low * 0x0001_0001 | high * 0x0100_0100).all()


@pytest.mark.filterwarnings("error")
def test_lanes_that_are_off_may_hold_anything_without_a_warning() -> None:
    values = np.array([0.0, -1.0, np.inf, np.nan] * 8, np.float32)
    ran = run_ptx(
        EACH
        + """
        setp.gt.f32 %p1, %r2, 0f00000000;
        mov.b32 %r3, 0;
        @%p1 rsqrt.approx.f32 %r3, %r2;
        @%p1 div.rn.f32 %r3, %r3, %r3;
        cvt.rzi.s32.f32 %r4, %r3;
        st.global.b32 [%rd3], %r3;
        """,
        buffers={"x": values, "y": np.ones(32, np.uint32)},
    )
    # 1 / sqrt(inf) is 0, and 0 / 0 is the canonical NaN
    assert ran["y"].tolist() == [0, 0, 0x7FFF_FFFF, 0] * 8


def test_a_guarded_128_bit_move_keeps_the_other_lanes() -> None:
    ran = run_ptx(
        EACH
        + """
        {
        .reg .b128 q;
        mov.b64 %rd4, 7;
        mov.b64 %rd5, 9;
        mov.b128 q, {%rd4, %rd5};
        setp.lt.u32 %p1, %r1, 4;
        cvt.u64.u32 %rd6, %r2;
        @%p1 mov.b128 q, {%rd6, %rd4};
        mov.b128 {%rd7, %rd8}, q;
        add.s64 %rd9, %rd7, %rd8;
        cvt.u32.u64 %r5, %rd9;
        }
        st.global.b32 [%rd3], %r5;
        """,
        buffers={"x": np.arange(32, dtype=np.uint32), "y": np.zeros(32, np.uint32)},
    )
    assert ran["y"].tolist() == [lane + 7 if lane < 4 else 16 for lane in range(32)]


def test_a_division_by_zero_is_counted_and_goes_on() -> None:
    ran = run_ptx(
        EACH + "div.u32 %r3, 100, %r2;\nst.global.b32 [%rd3], %r3;\n",
        buffers={"x": np.arange(32, dtype=np.uint32), "y": np.zeros(32, np.uint32)},
    )
    assert ran.grid.findings == []
    assert ran.grid.counters["divisions.by_zero"] == 1
    assert ran["y"].tolist() == [0xFFFF_FFFF] + [100 // lane for lane in range(1, 32)]


def test_a_form_that_is_not_modelled_stops_the_kernel_by_name_and_line() -> None:
    with pytest.raises(Unsupported, match=r"cvt\.rs\.e4m3x4\.f32") as caught:
        run_ptx("mov.b32 %r1, 0;\ncvt.rs.e4m3x4.f32 %r2, {%r1, %r1, %r1, %r1}, %r1;\n")
    assert caught.value.where is None or caught.value.where.ptx_line is not None


def test_four_values_are_rounded_stochastically_by_the_lanes_own_random_bits() -> None:
    """2.25 becomes 2 or 3 (E2M1 codes 4 and 5): 3 from the random byte 192 on."""
    ran = run_ptx(
        EACH + "add.u32 %r2, %r2, 0xC0BF00B0;\nmov.b32 %r3, 0f40100000;\n"
        "cvt.rs.satfinite.e2m1x4.f32 %rs1, {%r3, %r3, %r3, %r3}, %r2;\n"
        "cvt.u32.u16 %r4, %rs1;\nst.global.b32 [%rd3], %r4;\n",
        buffers={"x": np.arange(32, dtype=np.uint32), "y": np.zeros(32, np.uint32)},
    )
    assert ran["y"].tolist() == [0x5444] * 16 + [0x5445] * 16


def test_the_carry_must_come_from_somewhere() -> None:
    with pytest.raises(Fault, match="carry flag"):
        run_ptx("addc.u32 %r1, 1, 2;\n")
