"""Lanes that take different ways, against a scalar interpreter of the same little programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from tests.sim.ptx_case import run_ptx
from tests.sim.run.diverging import out


def test_a_loop_of_a_different_length_in_every_lane() -> None:
    got = out(
        """
        mov.b32 %r2, 0; mov.b32 %r3, 0;
        LOOP: setp.ge.u32 %p1, %r3, %r1;
        @%p1 bra END;
        add.s32 %r2, %r2, %r3; add.s32 %r3, %r3, 1;
        bra LOOP;
        END: add.s32 %r2, %r2, 1000;
        """
    )
    lanes = np.arange(64)
    assert (got == lanes * (lanes - 1) // 2 + 1000).all()


def test_what_is_live_across_a_branch_keeps_its_value_in_the_other_lanes() -> None:
    got = out(
        """
        mov.b32 %r2, 7; and.b32 %r4, %r1, 3; setp.eq.s32 %p1, %r4, 0;
        @!%p1 bra SKIP;
        mov.b32 %r2, 9;
        SKIP: add.s32 %r2, %r2, 1;
        """
    )
    assert (got == np.where(np.arange(64) % 4 == 0, 10, 8)).all()


def test_a_guard_writes_only_where_it_holds() -> None:
    got = out("mov.b32 %r2, 5; setp.lt.u32 %p1, %r1, 40; @%p1 add.s32 %r2, %r1, 100;")
    assert (got == np.where(np.arange(64) < 40, np.arange(64) + 100, 5)).all()


def test_lanes_that_exit_write_nothing_more() -> None:
    got = out("mov.b32 %r2, 5; setp.lt.u32 %p1, %r1, 40; @%p1 exit; mov.b32 %r2, 6;")
    assert (got == np.where(np.arange(64) < 40, 0, 6)).all()


def test_an_indexed_branch_goes_each_lane_its_way() -> None:
    got = out(
        """
        and.b32 %r3, %r1, 3;
        TS: .branchtargets L0, L1, L2, L0;
        brx.idx %r3, TS;
        L0: mov.b32 %r2, 10; bra DONE;
        L1: mov.b32 %r2, 11; bra DONE;
        L2: mov.b32 %r2, 12; bra DONE;
        """
    )
    assert (got == np.array([10, 11, 12, 10])[np.arange(64) % 4]).all()


def test_a_guard_keeps_lanes_from_an_indexed_branch() -> None:
    got = out(
        """
        mov.b32 %r2, 20; and.b32 %r3, %r1, 1; setp.lt.u32 %p1, %r1, 40;
        TS: .branchtargets L0, L1;
        @%p1 brx.idx %r3, TS;
        add.s32 %r2, %r2, 1; bra DONE;
        L0: mov.b32 %r2, 10; bra DONE;
        L1: mov.b32 %r2, 11; bra DONE;
        """
    )
    lanes = np.arange(64)
    assert (got == np.where(lanes < 40, 10 + lanes % 2, 21)).all()


def test_an_index_beyond_the_targets_is_found() -> None:
    with pytest.raises(Fault, match="index 3 of 3 targets"):
        out("and.b32 %r3, %r1, 3; TS: .branchtargets DONE, DONE, DONE; brx.idx %r3, TS;")


def test_a_uniform_branch_that_diverges_is_found() -> None:
    with pytest.raises(Fault, match=r"bra\.uni") as caught:
        out("setp.lt.u32 %p1, %r1, 3; mov.b32 %r2, 1; @%p1 bra.uni DONE; mov.b32 %r2, 2;")
    where = caught.value.where
    assert where is not None
    assert where.warp == 0
    assert "bra.uni" in where.text


def test_lanes_meet_at_a_collective() -> None:
    got = out(
        """
        mov.b32 %r2, %r1; and.b32 %r3, %r1, 1; setp.eq.s32 %p1, %r3, 0;
        @%p1 bra EVEN;
        add.s32 %r2, %r2, 100; add.s32 %r2, %r2, 100; add.s32 %r2, %r2, 100;
        EVEN: shfl.sync.bfly.b32 %r2, %r2, 1, 31, -1;
        """
    )
    lane = np.arange(64)
    partner = lane ^ 1
    assert (got == np.where(partner % 2 == 1, partner + 300, partner)).all()


def test_lanes_that_wait_for_each_other_in_two_places_are_found() -> None:
    with pytest.raises(Fault, match="different instructions"):
        out(
            """
            mov.b32 %r2, 0; setp.lt.u32 %p1, %r1, 3;
            @%p1 bra OTHER;
            bar.warp.sync -1; bra DONE;
            OTHER: bar.warp.sync -1;
            """
        )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_branches_equal_a_scalar_run(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6), label="blocks")
    lines = ["mov.b32 %r2, 1; mov.b32 %r3, %r1; mov.b32 %r9, 0;"]
    program = []
    for index in range(count):
        bit = data.draw(st.integers(0, 4))
        target = data.draw(st.integers(index + 1, count))
        multiplier, adder = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 9))
        back = data.draw(st.booleans())
        program.append((bit, target, multiplier, adder, back))
        lines.append(
            f"B{index}: mul.lo.s32 %r2, %r2, {multiplier}; add.s32 %r2, %r2, {adder}; xor.b32 %r3, %r3, %r2;"
            f"shr.u32 %r4, %r3, {bit}; and.b32 %r4, %r4, 1; setp.ne.s32 %p1, %r4, 0; @%p1 bra B{target};"
        )
        if back and index:
            lines.append(f"add.s32 %r9, %r9, 1; setp.lt.s32 %p2, %r9, 5; @%p2 bra B{index - 1};")
    lines.append(f"B{count}:")

    def scalar(thread: int) -> int:
        r2, r3, r9, at = 1, thread, 0, 0
        while at < count:
            bit, target, multiplier, adder, back = program[at]
            r2 = (r2 * multiplier + adder) & 0xFFFF_FFFF
            r3 ^= r2
            if r3 >> bit & 1:
                at = target
                continue
            if back and at:
                r9 += 1
                if r9 < 5:
                    at -= 1
                    continue
            at += 1
        return r2

    got = out("\n".join(lines))
    assert got.tolist() == [scalar(thread) for thread in range(64)]


def test_a_lane_that_holds_a_lock_goes_on_while_the_others_spin_on_it() -> None:
    ran = run_ptx(
        """
        mov.u32 %r1, %tid.x;
        TRY: atom.global.cas.b32 %r2, [%rd100], 0, 1; setp.ne.s32 %p1, %r2, 0; @%p1 bra TRY;
        ld.global.b32 %r3, [%rd101]; add.s32 %r3, %r3, 1; st.global.b32 [%rd101], %r3;
        atom.global.exch.b32 %r2, [%rd100], 0;
        """,
        buffers={"lock": np.zeros(1, np.uint32), "count": np.zeros(1, np.uint32)},
    )
    assert ran["count"][0] == 32


def test_lanes_come_together_behind_an_if_in_a_loop() -> None:
    """``bra.uni`` in a loop with an if of one lane, as in CuTe DSL's waits, needs all lanes in one iteration."""
    got = out(
        """
        mov.b32 %r2, 0; mov.b32 %r3, 0; and.b32 %r4, %r1, 31;
        LOOP: setp.ge.u32 %p1, %r3, 9; @%p1 bra.uni DONE;
        setp.ne.u32 %p2, %r4, 0; @%p2 bra NEXT;
        add.s32 %r2, %r2, 1;
        bar.warp.sync 1;
        add.s32 %r2, %r2, 1;
        NEXT: add.s32 %r3, %r3, 1; add.s32 %r2, %r2, 5;
        bra LOOP;
        """
    )
    assert (got == np.where(np.arange(64) % 32 == 0, 63, 45)).all()
