"""Loads of bytes that nothing has written: a finding where a lane uses the value, none where no lane does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.ptx_case import Ran, run_ptx

# r0: thread; r1: its word of shared memory, of which the first 16 are written; r2: the word; rd3: its output.
LOAD = """
mov.u32 %r0, %tid.x; shl.b32 %r3, %r0, 2; mov.u32 %r4, smem; add.u32 %r1, %r4, %r3;
cvt.u64.u32 %rd1, %r3; add.u64 %rd3, %rd100, %rd1;
setp.lt.u32 %p1, %r0, 16; @%p1 st.shared.b32 [%r1], %r0; bar.sync 0;
setp.ge.u32 %p2, %r0, 16; mov.b32 %r9, 0;
"""
GET = "ld.shared.b32 %r2, [%r1];"
PUT = "st.global.b32 [%rd3], %r2;"

DEAD = {
    "nothing reads it": GET,
    "the lanes are not those that store it": GET + "@%p1 " + PUT,
    "a branch skips it": GET + "@%p2 bra END;" + PUT + "END: bar.sync 0;",
    "their guard is computed later": GET + "bra.uni NEXT; NEXT: setp.lt.u32 %p5, %r0, 16; @%p5 " + PUT,
    "the lanes exit": GET + "@%p2 exit;" + PUT,
    "a long branch skips it": GET + "@%p2 bra END; bar.warp.sync 65535;" + PUT + "END: bar.warp.sync -1;",
    "arithmetic with it is dead": GET + "mul.lo.u32 %r5, %r2, 3; setp.eq.u32 %p4, %r5, 0; selp.b32 %r6, 1, 2, %p4;",
    "it is overwritten": GET + "mov.b32 %r2, 5; " + PUT,
    "the next load replaces it": """
        AGAIN: ld.shared.b32 %r2, [%r1]; bra.uni NEXT; NEXT: add.u32 %r9, %r9, 1; setp.eq.u32 %p5, %r9, 1;
        @%p5 bra SKIP; st.global.b32 [%rd3], %r2;
        SKIP: @!%p5 bra END; bar.sync 0; st.shared.b32 [%r1], %r0; bar.sync 0; bra AGAIN; END: bar.sync 0;
    """,
}
USED = {
    "a store": GET + PUT,
    "a store in one lane": GET + "setp.eq.u32 %p3, %r0, 31; @%p3 " + PUT,
    "a store behind a branch": GET + "@%p1 bra END;" + PUT + "END: bar.sync 0;",
    "a store after a long branch": GET + "@%p1 bra END; bar.warp.sync 0xffff0000;" + PUT + "END: bar.warp.sync -1;",
    "times 0": GET + "mul.lo.u32 %r2, %r2, 0;" + PUT,
    "and 0, moved on": GET + "and.b32 %r5, %r2, 0; mov.b32 %r2, %r5;" + PUT,
    "a predicate that guards a store": GET + "setp.eq.u32 %p3, %r2, 12345; @%p3 st.global.b32 [%rd3], %r0;",
    "a predicate that guards a store in a later block": GET
    + "setp.eq.u32 %p3, %r2, 12345; bra.uni NEXT; NEXT: @%p3 st.global.b32 [%rd3], %r0;",
    "a predicate that selects": GET + "setp.eq.u32 %p3, %r2, 7; selp.b32 %r2, 1, 2, %p3;" + PUT,
    "a selected value": GET + "selp.b32 %r2, %r2, 2, %p2;" + PUT,
    "a branch": GET + "setp.eq.u32 %p3, %r2, 12345; @%p3 bra END; st.global.b32 [%rd3], %r0; END: bar.sync 0;",
    "an address": GET
    + "and.b32 %r5, %r2, 0; add.u32 %r5, %r5, %r4; ld.shared.b32 %r6, [%r5]; st.global.b32 [%rd3], %r6;",
    "an exchange": GET + "shfl.sync.idx.b32 %r5, %r2, 31, 31, -1; st.global.b32 [%rd3], %r5;",
    "a carry": GET + "add.cc.u32 %r5, %r2, 1; addc.u32 %r2, %r0, 0;" + PUT,
    "memory": GET + "st.shared.b32 [%r1], %r2;",
    "the next turn of a loop": """
        mov.b32 %r7, 0;
        AGAIN: add.u32 %r8, %r7, 1; st.global.b32 [%rd3], %r8; ld.shared.b32 %r7, [%r1]; add.u32 %r9, %r9, 1;
        setp.lt.u32 %p5, %r9, 2; @%p5 bra AGAIN;
    """,
    "what depends on it, across a load": """
        mov.b32 %r7, 0;
        AGAIN: ld.shared.b32 %r2, [%r1]; add.u32 %r7, %r7, %r2; st.shared.b32 [%r1], %r0; add.u32 %r9, %r9, 1;
        setp.lt.u32 %p5, %r9, 2; @%p5 bra AGAIN; st.global.b32 [%rd3], %r7;
    """,
}


def ran(body: str, threads: int = 32) -> Ran:
    return run_ptx(
        LOAD + body, buffers={"out": np.zeros(threads, np.uint32)}, shared=4096, block=(threads, 1, 1)
    )  # fmt: skip


@pytest.mark.parametrize("why", DEAD)
def test_a_dead_value_is_no_finding(why: str) -> None:
    assert [finding.message for finding in ran(DEAD[why]).grid.findings] == []


@pytest.mark.parametrize("why", USED)
def test_a_used_value_is_one_at_the_load(why: str) -> None:
    (finding,) = ran(USED[why]).grid.findings
    assert finding.kind == "uninitialised"
    assert finding.where is not None
    assert finding.where.text.startswith("ld.shared.b32")
    assert set(finding.where.lanes) <= set(range(16, 32))


@pytest.mark.parametrize(("warp", "found"), [(0, 1), (1, 0)])
def test_the_warp_that_uses_it_decides(warp: int, found: int) -> None:
    """Both warps load a word (an address of TMEM, say); the one that has it in time uses it, or the other one."""
    body = f"""
        mov.u32 %r0, %tid.x; mov.u32 %r4, smem; shl.b32 %r3, %r0, 2; cvt.u64.u32 %rd1, %r3; add.u64 %rd3, %rd100, %rd1;
        shr.u32 %r5, %r0, 5; setp.ne.u32 %p1, %r5, 0; @%p1 bar.sync 1, 64;
        ld.shared.b32 %r2, [%r4];
        @!%p1 st.shared.b32 [%r4], %r5; @!%p1 bar.sync 1, 64;
        bar.sync 0; setp.ne.u32 %p2, %r5, {warp}; @%p2 bra END; st.global.b32 [%rd3], %r2; END: bar.sync 0;
    """
    case = run_ptx(body, buffers={"out": np.zeros(64, np.uint32)}, shared=64, block=(64, 1, 1))
    assert len(case.grid.findings) == found


@pytest.mark.parametrize(("use", "found"), [("", 0), ("st.global.b32 [%rd3], %r5;", 1)])
def test_local_memory(use: str, found: int) -> None:
    case = run_ptx(
        f".local .align 4 .b8 own[16]; cvt.u64.u32 %rd1, %tid.x; shl.b64 %rd1, %rd1, 2; add.u64 %rd3, %rd100, %rd1;"
        f"ld.local.b32 %r2, [own+8]; add.u32 %r5, %r2, 1; {use}",
        buffers={"out": np.zeros(32, np.uint32)},
    )
    assert len(case.grid.findings) == found
