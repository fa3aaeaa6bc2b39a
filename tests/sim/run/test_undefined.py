"""Loads of bytes that nothing has written: a finding where a lane uses the value, none where no lane does."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pytest

from pytest_nvfp4.finding import UNWRITTEN_SOURCE, Finding
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.run.grid import Grid
from tests.sim.ptx_case import Ran, run_ptx

# r0: thread; r1: its word of shared memory, of which the first 16 are written; r2: the word; rd3: its output.
LOAD = """
mov.u32 %r0, %tid.x; shl.b32 %r3, %r0, 2; mov.u32 %r4, smem; add.u32 %r1, %r4, %r3;
cvt.u64.u32 %rd1, %r3; add.u64 %rd3, %rd100, %rd1; add.u64 %rd2, %rd101, %rd1;
setp.lt.u32 %p1, %r0, 16; @%p1 st.shared.b32 [%r1], %r0; @%p1 st.global.b32 [%rd2], %r0; bar.sync 0;
setp.ge.u32 %p2, %r0, 16; mov.b32 %r9, 0;
"""
GET = "ld.shared.b32 %r2, [%r1];"
PUT = "st.global.b32 [%rd3], %r2;"
SHUFFLE = "shfl.sync.bfly.b32 %r5, %r2, {}, 31, -1;"

# Three products that are made together (``lower.batches``), the first of which stands before the load.
TOGETHER = "cvt.rn.f32.u32 %f1, %r0; mul.f32 %f2, %f1, %f1; ld.shared.b32 %f3, [%r1]; mul.f32 %f4, %f3, %f1;"
TOGETHER += "mul.f32 %f5, %f2, %f1; mul.f32 %f6, %f1, 0f40000000; st.global.f32 [%rd3], "

PATHS = "mov.b32 %r5, 0; @!%p5 bra JOIN; add.u32 %r5, %r2, {};"
PATHS += "JOIN: bar.warp.sync -1; st.global.b32 [%rd3], %r5;"

DEAD = {
    "a product with it is dead, and made with others": TOGETHER + "%f6;",
    "nothing reads it": GET,
    "the lanes are not those that store it": GET + "@%p1 " + PUT,
    "it is computed at once": GET + "setp.lt.u32 %p5, %r0, 16; @%p5 " + PUT,
    "it is computed of what the block has computed": "add.u32 %r7, %r0, 3;"
    + GET
    + "shl.b32 %r8, %r7, 1; setp.lt.u32 %p5, %r8, 38; not.pred %p6, %p5; and.pred %p6, %p6, %p2; @!%p6 "
    + PUT,
    "it is computed under a guard": GET + "mov.b32 %r8, 1; @%p2 mov.b32 %r8, 0; setp.eq.u32 %p5, %r8, 1; @%p5 " + PUT,
    "a selection decides at once": GET + "setp.lt.u32 %p5, %r0, 16; selp.b32 %r2, 7, %r2, %p5; @%p5 " + PUT,
    "a branch skips it": GET + "@%p2 bra END;" + PUT + "END: bar.sync 0;",
    "their guard is computed later": GET + "bra.uni NEXT; NEXT: setp.lt.u32 %p5, %r0, 16; @%p5 " + PUT,
    "the lanes exit": GET + "@%p2 exit;" + PUT,
    "a long branch skips it": GET + "@%p2 bra END; bar.warp.sync 65535;" + PUT + "END: bar.warp.sync -1;",
    "arithmetic with it is dead": GET + "mul.lo.u32 %r5, %r2, 3; setp.eq.u32 %p4, %r5, 0; selp.b32 %r6, 1, 2, %p4;",
    "lanes that store nothing exchange it": GET + SHUFFLE.format(8) + "@%p1 st.global.b32 [%rd3], %r5;",
    "they do in a later block": GET + "bra.uni NEXT; NEXT:" + SHUFFLE.format(8) + "@%p1 st.global.b32 [%rd3], %r5;",
    "they do behind a branch": GET
    + "mov.b32 %r5, 0; @%p1 bra NEXT; shfl.sync.bfly.b32 %r5, %r2, 8, 31, 0xffff0000;"
    + "NEXT: @%p1 st.global.b32 [%rd3], %r5;",
    "what an exchange does with it is dead": GET + SHUFFLE.format(16) + "add.u32 %r5, %r5, 1;",
    "the predicate of an exchange does not depend on it": GET
    + "shfl.sync.bfly.b32 %r5|%p3, %r2, 1, 31, -1; @%p3 st.global.b32 [%rd3], %r0;",
    "a reduction of lanes that store nothing": GET
    + "mov.b32 %r5, 0; @%p1 bra NEXT; redux.sync.add.s32 %r5, %r2, 0xffff0000; NEXT: @%p1 st.global.b32 [%rd3], %r5;",
    "it is overwritten": GET + "mov.b32 %r2, 5; " + PUT,
    "a selection drops it": GET + "selp.b32 %r2, %r2, 2, %p1;" + PUT,
    "a selection in a later block drops it": GET + "bra.uni NEXT; NEXT: selp.b32 %r2, 2, %r2, %p2;" + PUT,
    "lanes that a selection gives it store nothing": GET + "selp.b32 %r5, %r2, 2, %p2; @%p1 st.global.b32 [%rd3], %r5;",
    "a path that is not taken carries it": "setp.eq.u32 %p5, %r9, 1;" + GET + PATHS.format("1"),
    "a long path that is not taken carries it": "setp.eq.u32 %p5, %r9, 1;" + GET + PATHS.format("1; bar.warp.sync -1"),
    "a path of other lanes carries it": GET + "mov.b32 %r5, 0; @%p2 bra JOIN; add.u32 %r5, %r2, 1;"
    "bar.warp.sync 65535; JOIN: bar.warp.sync -1; st.global.b32 [%rd3], %r5;",
    "the next load replaces it": """
        AGAIN: ld.shared.b32 %r2, [%r1]; bra.uni NEXT; NEXT: add.u32 %r9, %r9, 1; setp.eq.u32 %p5, %r9, 1;
        @%p5 bra SKIP; st.global.b32 [%rd3], %r2;
        SKIP: @!%p5 bra END; bar.sync 0; st.shared.b32 [%r1], %r0; bar.sync 0; bra AGAIN; END: bar.sync 0;
    """,
}
USED = {
    "a product that is made with others": TOGETHER + "%f4;",
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
    "a selection in a later block": GET + "bra.uni NEXT; NEXT: selp.b32 %r2, 2, %r2, %p1;" + PUT,
    "a path that is taken": "setp.eq.u32 %p5, %r9, 0;" + GET + PATHS.format("1"),
    "a long path that is taken": "setp.eq.u32 %p5, %r9, 0;" + GET + PATHS.format("1; bar.warp.sync -1"),
    "a branch": GET + "setp.eq.u32 %p3, %r2, 12345; @%p3 bra END; st.global.b32 [%rd3], %r0; END: bar.sync 0;",
    "a guard that is computed at once": GET + "setp.gt.u32 %p5, %r0, 30; @%p5 " + PUT,
    "one that a load decides": GET + "ld.shared.b32 %r8, [%r4+4]; setp.eq.u32 %p5, %r8, 1; @%p5 " + PUT,
    "one that is computed of it": GET + "setp.lt.u32 %p5, %r2, 16; @%p5 st.global.b32 [%rd3], %r0;",
    "an address": GET
    + "and.b32 %r5, %r2, 0; add.u32 %r5, %r5, %r4; ld.shared.b32 %r6, [%r5]; st.global.b32 [%rd3], %r6;",
    "an exchange": GET + "shfl.sync.idx.b32 %r5, %r2, 31, 31, -1; st.global.b32 [%rd3], %r5;",
    "an exchange with lanes that store": GET + SHUFFLE.format(16) + "@%p1 st.global.b32 [%rd3], %r5;",
    "one in a later block": GET + "bra.uni NEXT; NEXT:" + SHUFFLE.format(16) + "@%p1 st.global.b32 [%rd3], %r5;",
    "one whose result a later block stores": GET
    + SHUFFLE.format(16)
    + "bra.uni NEXT; NEXT: @%p1 st.global.b32 [%rd3], %r5;",
    "two exchanges": GET
    + SHUFFLE.format(8)
    + "shfl.sync.up.b32 %r6, %r5, 1, 0, -1; shfl.sync.bfly.b32 %r6, %r6, 16, 31, -1; @%p1 st.global.b32 [%rd3], %r6;",
    "an exchange with a computed lane": GET
    + "xor.b32 %r5, %r0, 16; shfl.sync.idx.b32 %r5, %r2, %r5, 31, -1; @%p1 st.global.b32 [%rd3], %r5;",
    "a reduction with lanes that store": GET + "redux.sync.add.s32 %r5, %r2, -1; @%p1 st.global.b32 [%rd3], %r5;",
    "a reduction in a later block": GET
    + "bra.uni NEXT; NEXT: redux.sync.add.s32 %r5, %r2, -1; @%p1 st.global.b32 [%rd3], %r5;",
    "the lane of an exchange": GET + "shfl.sync.idx.b32 %r5, %r0, %r2, 31, -1; @%p2 st.global.b32 [%rd3], %r5;",
    "a carry": GET + "add.cc.u32 %r5, %r2, 1; addc.u32 %r2, %r0, 0;" + PUT,
    "memory that is volatile": GET + "st.volatile.shared.b32 [%r1+2048], %r2;",
    "the address of a store": GET + "and.b32 %r5, %r2, 0; add.u32 %r5, %r5, %r1; st.shared.b32 [%r5+2048], %r0;",
    "the address that a store writes, too": GET
    + "and.b32 %r5, %r2, 0; add.u32 %r5, %r5, %r4; st.shared.v2.b32 [%r5+2048], {%r4, %r5};",
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


# r1 of shared memory, or rd2 of a tensor that nothing wrote before the launch
SPACES = {"shared": "[%r1]", "global": "[%rd2]"}


def ran(body: str, space: str) -> Ran:
    for opcode in ("ld", "st"):
        body = re.sub(rf"{opcode}\.shared(\S+)( %\w+,)? \[%r1\]", rf"{opcode}.{space}\1\2 {SPACES[space]}", body)
    buffers = {"out": np.zeros(32, np.uint32), "scratch": np.full(32, 0xFFFF_FFFF, np.uint32)}
    return run_ptx(LOAD + body, buffers=buffers, shared=4096, prepare=track)


def track(grid: Grid) -> None:
    next(region for region in grid.machine.memory if region.name == "scratch").track_writes()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("why", DEAD)
def test_a_dead_value_is_no_finding(why: str, space: str) -> None:
    assert [finding.message for finding in ran(DEAD[why], space).grid.findings] == []


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("why", USED)
def test_a_used_value_is_one_at_the_load(why: str, space: str) -> None:
    (finding,) = ran(USED[why], space).grid.findings
    assert finding.kind == "uninitialised"
    assert finding.where is not None
    assert finding.where.text.startswith(f"ld.{space}")
    assert set(finding.where.lanes) <= set(range(16, 32))
    assert space != "global" or "scratch at byte" in finding.message


COPY = GET + "add.u32 %r5, %r1, 1024; st.shared.b32 [%r5], %r2; bar.sync 0;"
BACK = "ld.shared.b32 %r6, [%r5]; bar.sync 0;"
STMATRIX = GET + "shl.b32 %r7, %r0, 4; add.u32 %r7, %r7, %r4; add.u32 %r7, %r7, 1024;"
STMATRIX += "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r7], {%r2}; bar.sync 0; add.u32 %r5, %r1, 1024;" + BACK
SECOND = GET + "shl.b32 %r7, %r0, 4; add.u32 %r7, %r7, %r4; add.u32 %r7, %r7, 1024;"
SECOND += "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r7], {{%r0, %r2}}; bar.sync 0; add.u32 %r5, %r1, 1024;"
SECOND += "ld.shared.b32 %r6, [%r5+{}]; bar.sync 0;"
PASSED_ON = {
    "nothing loads the bytes": (COPY, ""),
    "nothing uses what is loaded": (COPY + BACK, ""),
    "lanes with a value do": (COPY + BACK + "@%p1 st.global.b32 [%rd3], %r6;", ""),
    "they are overwritten": (COPY + "st.shared.b32 [%r5], %r0; bar.sync 0;" + BACK + "st.global.b32 [%rd3], %r6;", ""),
    "all use it": (COPY + BACK + "st.global.b32 [%rd3], %r6;", "ld.shared.b32, lane 16 loads the value from byte 1088"),
    "another lane does": (
        COPY + "xor.b32 %r7, %r5, 64; ld.shared.b32 %r6, [%r7]; @%p1 st.global.b32 [%rd3], %r6;",
        "ld.shared.b32, lane 0 loads the value from byte 1088",
    ),
    "over two places": (
        COPY
        + BACK
        + "st.shared.b32 [%r5+1024], %r6; bar.sync 0; ld.shared.b32 %r8, [%r5+1024]; st.global.b32 [%rd3], %r8;",
        "lane 16 loads the value from byte 2112",
    ),
    "by an exchange": (
        GET + SHUFFLE.format(16) + "add.u32 %r7, %r1, 1024; st.shared.b32 [%r7], %r5; bar.sync 0;"
        "ld.shared.b32 %r6, [%r7]; @%p1 st.global.b32 [%rd3], %r6;",
        "lane 0 loads the value from byte 1024",
    ),
    "one lane stores it": (
        GET + "setp.eq.u32 %p3, %r0, 20; @%p3 st.shared.b32 [%r4+1024], %r2; bar.sync 0;"
        "ld.shared.b32 %r6, [%r4+1024]; st.global.b32 [%rd3], %r6;",
        "loads the value from byte 1024",
    ),
    "of a vector": (
        GET + "add.u32 %r5, %r1, %r3; st.shared.v2.b32 [%r5+1024], {%r0, %r2}; bar.sync 0;"
        "ld.shared.b32 %r6, [%r5+1028]; st.global.b32 [%rd3], %r6;",
        "lane 16 loads the value from byte 1156",
    ),
    "the other element of a vector": (
        GET + "add.u32 %r5, %r1, %r3; st.shared.v2.b32 [%r5+1024], {%r0, %r2}; bar.sync 0;"
        "ld.shared.b32 %r6, [%r5+1024]; st.global.b32 [%rd3], %r6;",
        "",
    ),
    "of a vector that one lane stores": (
        GET + "setp.eq.u32 %p3, %r0, 20; @%p3 st.shared.v2.b32 [%r4+1024], {%r0, %r2}; bar.sync 0;"
        "ld.shared.b32 %r6, [%r4+1028]; st.global.b32 [%rd3], %r6;",
        "loads the value from byte 1028",
    ),
    "the other element that one lane stores": (
        GET + "setp.eq.u32 %p3, %r0, 20; @%p3 st.shared.v2.b32 [%r4+1024], {%r0, %r2}; bar.sync 0;"
        "ld.shared.b32 %r6, [%r4+1024]; st.global.b32 [%rd3], %r6;",
        "",
    ),
    "of a matrix": (STMATRIX + "st.global.b32 [%rd3], %r6;", "lane 16 loads the value from byte 1088"),
    "the other rows of a matrix": (STMATRIX + "@%p1 st.global.b32 [%rd3], %r6;", ""),
    "the second matrix": (SECOND.format(128) + "st.global.b32 [%rd3], %r6;", "lane 16 loads the value from byte 1216"),
    "the first matrix": (SECOND.format(0) + "st.global.b32 [%rd3], %r6;", ""),
}


@pytest.mark.parametrize("how", PASSED_ON)
def test_a_store_to_shared_memory_passes_it_on(how: str) -> None:
    """The finding is that of the load, with what loads the value again."""
    body, says = PASSED_ON[how]
    found = ran(body, "shared").grid.findings
    if not says:
        assert [finding.message for finding in found] == []
        return
    (finding,) = found
    assert finding.kind == "uninitialised"
    assert says in finding.message
    assert "was never written; " in finding.message
    assert finding.where is not None
    assert finding.where.text == GET.removesuffix(";")


OTHERS = {
    "red": ("red.global.add.u32 [%rd2], 1; ld.global.b32 %r2, [%rd2]; st.global.b32 [%rd3], %r2;", "uninitialised"),
    "exch": ("atom.global.exch.b32 %r2, [%rd2], 1; st.global.b32 [%rd3], %r2;", "uninitialised"),
    "cas": ("atom.global.cas.b32 %r2, [%rd2], 0, 1;", "uninitialised"),
    "cp.reduce.async.bulk": (
        """
        setp.eq.u32 %p3, %r0, 0; st.shared.b32 [%r1], %r0; fence.proxy.async; bar.sync 0;
        @%p3 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd101], [%r4], 128;
        @%p3 cp.async.bulk.commit_group; @%p3 cp.async.bulk.wait_group 0; fence.proxy.async; bar.sync 0;
        ld.global.b32 %r2, [%rd2]; st.global.b32 [%rd3], %r2;
        """,
        "uninitialised",
    ),
    "one address": ("ld.global.b32 %r2, [%rd101+64]; st.global.b32 [%rd3], %r2;", "uninitialised"),
    "cp.async": ("cp.async.ca.shared.global [%r1], [%rd2], 4; cp.async.wait_all;", UNWRITTEN_SOURCE),
    "cp.async in part": ("cp.async.ca.shared.global [%r1], [%rd2], 4, 3; cp.async.wait_all;", UNWRITTEN_SOURCE),
    "cp.async.bulk": (
        """
        setp.eq.u32 %p3, %r0, 0; add.u32 %r5, %r4, 2048; @%p3 mbarrier.init.shared.b64 [%r5], 1; bar.sync 0;
        @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 128;
        @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd101], 128, [%r5];
        WAIT: mbarrier.try_wait.parity.shared.b64 %p4, [%r5], 0; @!%p4 bra WAIT;
        """,
        UNWRITTEN_SOURCE,
    ),
}


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("how", OTHERS)
def test_other_reads_of_global_memory(how: str, written: bool) -> None:
    use, kind = OTHERS[how]
    body = ("st.global.b32 [%rd2], %r0; bar.sync 0;" if written else "") + use
    assert [finding.kind for finding in ran(body, "shared").grid.findings] == [kind] * (not written)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("result", ["%r2", "_"])
@pytest.mark.parametrize("used", [False, True])
def test_an_exchange_writes_and_its_result_may_have_no_use(result: str, used: bool, space: str) -> None:
    """A lock is released so, and Triton writes so if the caller drops the result."""
    place = SPACES[space]
    use = "st.global.b32 [%rd3], %r2;" if used else f"ld.{space}.b32 %r5, {place}; st.global.b32 [%rd3], %r5;"
    case = ran(f"mov.b32 %r2, 0; atom.{space}.exch.b32 {result}, {place}, %r0; {use}", space)
    assert len(case.grid.findings) == (used and result != "_")


def test_a_load_that_was_reported_is_not_examined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp that polls a counter which nothing has written repeats it many times."""
    made: list[int] = []
    fault = Region.uninitialised

    def counted(region: Region, offset: int, **kwargs: str) -> Fault:
        made.append(offset)
        return fault(region, offset, **kwargs)

    monkeypatch.setattr(Region, "uninitialised", counted)
    loop = "LOOP: {} %r2, [%rd2]; add.u32 %r5, %r5, 1; st.global.b32 [%rd3], %r2; setp.lt.u32 %p3, %r5, 99;"
    case = ran(f"mov.b32 %r5, 0; {loop.format('ld.volatile.global.b32')} @%p3 bra LOOP;", "shared")
    assert len(case.grid.findings) == 1
    assert 1 <= len(made) <= 2


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


UNSET = {
    "it is stored": ("st.global.b32 [%rd3], %r20;", "st.global.b32: register %r20"),
    "what is computed of it is stored": (
        "add.u32 %r21, %r20, 1; bra.uni NEXT; NEXT: st.global.b32 [%rd3], %r21;",
        "add.u32: register %r20",
    ),
    "the first turn of a loop reads it": (
        "AGAIN: add.u32 %r20, %r20, 1; add.u32 %r9, %r9, 1; setp.lt.u32 %p5, %r9, 2; @%p5 bra AGAIN;"
        + "st.global.b32 [%rd3], %r20;",
        "add.u32: register %r20",
    ),
    "one path does not write it": (
        "@%p1 bra JOIN; mov.b32 %r20, 1; JOIN: st.global.b32 [%rd3], %r20;",
        "st.global.b32: register %r20",
    ),
    "a guarded write": ("@%p1 mov.b32 %r20, 1; st.global.b32 [%rd3], %r20;", "st.global.b32: register %r20"),
    "it guards a store": ("@%p6 st.global.b32 [%rd3], %r0;", "st.global.b32: register %p6"),
    "nothing is computed of it that matters": ("add.u32 %r20, %r20, 1;", None),
    "it is written": ("mov.b32 %r20, 1; st.global.b32 [%rd3], %r20;", None),
    "each path writes it": (
        "@%p1 bra ELSE; mov.b32 %r20, 1; bra.uni JOIN; ELSE: mov.b32 %r20, 2; JOIN: st.global.b32 [%rd3], %r20;",
        None,
    ),
    "the lanes that write it store it": ("@%p1 mov.b32 %r20, 1; @%p1 st.global.b32 [%rd3], %r20;", None),
    "the lanes of a branch store it": (
        "@!%p1 bra JOIN; mov.b32 %r20, 1; JOIN: @!%p1 bra END; st.global.b32 [%rd3], %r20; END: bar.sync 0;",
        None,
    ),
    "the other half of a pack is taken out": (
        "mov.b64 %rd5, {%r0, %r20}; mov.b64 {%r21, _}, %rd5; st.global.b32 [%rd3], %r21;",
        None,
    ),
    "halves of a pack are replaced one by one": (
        "mov.b64 {_, %r21}, %rd5; mov.b64 %rd5, {%r0, %r21}; mov.b64 {%r22, _}, %rd5;"
        "mov.b64 %rd5, {%r22, %r1}; st.global.b32 [%rd3], %r22;",
        None,
    ),
    "half of a pack is used": (
        "cvt.u16.u32 %rs1, %r0; mov.b32 %r21, {%rs1, %rs2}; and.b32 %r21, %r21, 65535; st.global.b32 [%rd3], %r21;",
        None,
    ),
    "bytes of a permutation are replaced": (
        "prmt.b32 %r21, %r20, %r0, 0x3340; prmt.b32 %r22, %r21, %r0, 0x4441; st.global.b32 [%rd3], %r22;",
        None,
    ),
    "bits are inserted into it": (
        "bfi.b32 %r21, %r0, %r20, 0, 16; and.b32 %r21, %r21, 65535; st.global.b32 [%rd3], %r21;",
        None,
    ),
    "half of a conversion is used": (
        "cvt.rn.f32.u32 %f1, %r0; cvt.rn.satfinite.e4m3x2.f32 %rs1, %f2, %f1; cvt.u32.u16 %r21, %rs1;"
        "prmt.b32 %r21, %r21, %r21, 0x3340; st.global.b32 [%rd3], %r21;",
        None,
    ),
    "both halves of a conversion are unset": (
        "cvt.rn.satfinite.e4m3x2.f32 %rs1, %f2, %f1; cvt.u32.u16 %r21, %rs1; st.global.b32 [%rd3], %r21;",
        "cvt.rn.satfinite.e4m3x2.f32: register %f1",
    ),
    "a byte beside it is used": (
        "prmt.b32 %r21, %r0, %r20, 0x5410; and.b32 %r21, %r21, 255; st.global.b32 [%rd3], %r21;",
        None,
    ),
    "its bytes are exchanged": (
        "prmt.b32 %r21, %r20, 0, 0x0123; st.global.b32 [%rd3], %r21;",
        "prmt.b32: register %r20",
    ),
    "a selection drops it": ("selp.b32 %r21, %r0, %r20, %p5; @%p5 st.global.b32 [%rd3], %r21;", None),
    "a path that is not taken reads it": (
        "setp.ne.u32 %p5, %r9, 0; @!%p5 bra END; st.global.b32 [%rd3], %r20; END: bar.sync 0;",
        None,
    ),
}


# A structure of two words, of which the first is written, is given to a function and returned by it; %r0 is the lane.
GIVEN = """
.func (.param .align 8 .b8 result[8]) same(.param .align 8 .b8 given[8])
{{ .reg .b32 %r<4>; .reg .b64 %rd<4>; {body} ret; }}
"""
GIVES = """
mov.u32 %r0, %tid.x; shl.b32 %r3, %r0, 2; cvt.u64.u32 %rd1, %r3; add.u64 %rd3, %rd100, %rd1;
{ .param .align 8 .b8 p0[8]; .param .align 8 .b8 p1[8]; st.param.v2.b32 [p0], {%r0, %r20}; call (p1), same, (p0);
ld.param.v2.b32 {%r4, %r5}, [p1]; }
"""


@pytest.mark.parametrize(
    ("body", "use", "found"),
    [
        ("ld.param.v2.b32 {%r1, %r2}, [given]; st.param.v2.b32 [result], {%r1, %r2};", "%r4", ""),
        ("ld.param.b64 %rd1, [given]; st.param.b64 [result], %rd1;", "%r4", ""),
        ("ld.param.v2.b32 {%r1, %r2}, [given]; st.param.v2.b32 [result], {%r1, %r2};", "%r5", "byte 12"),
        ("ld.param.b32 %r1, [given]; st.param.b32 [result], %r1;", "%r5", "reads local byte"),
    ],
)
def test_a_copy_of_a_structure_is_no_use_of_its_fields(body: str, use: str, found: str) -> None:
    case = run_ptx(
        GIVES + f"st.global.b32 [%rd3], {use};",
        buffers={"out": np.zeros(32, np.uint32)},
        globals_=GIVEN.format(body=body),
    )
    messages = [finding.message for finding in case.grid.findings]
    assert len(messages) == bool(found)
    assert all(found in message for message in messages)
    if found == "byte 12":
        assert messages[0].startswith("st.param.v2.b32: register %r20 was never written; ld.param.v2.b32, lane 0 loads")


@pytest.mark.parametrize("warps", [1, 9])
@pytest.mark.parametrize("how", UNSET)
def test_a_register_that_nothing_has_written(how: str, warps: int) -> None:
    """The finding is that of the first instruction that reads it; nine warps run side by side."""
    body, says = UNSET[how]
    start = """
        mov.u32 %r0, %tid.x; shl.b32 %r3, %r0, 2; cvt.u64.u32 %rd1, %r3; add.u64 %rd3, %rd100, %rd1; mov.b32 %r9, 0;
        and.b32 %r1, %r0, 31; setp.lt.u32 %p1, %r1, 16; setp.lt.u32 %p5, %r1, 8;
    """
    case = run_ptx(start + body, buffers={"out": np.zeros(32 * warps, np.uint32)}, block=(32 * warps, 1, 1))
    if says is None:
        assert [finding.message for finding in case.grid.findings] == []
        return
    (finding,) = case.grid.findings
    assert (finding.kind, finding.message) == ("uninitialised", f"{says} was never written")


# The first two of four matrices are written. r10 to r13: fragments; r15: the address of a row of a matrix.
MATRICES = """
mov.u32 %r0, %tid.x; mov.u32 %r4, smem; shl.b32 %r3, %r0, 4; add.u32 %r15, %r4, %r3; mov.b32 %r9, 0;
cvt.u64.u32 %rd1, %r0; shl.b64 %rd1, %rd1, 2; add.u64 %rd3, %rd100, %rd1;
setp.lt.u32 %p1, %r0, 16; @%p1 st.shared.v4.b32 [%r15], {%r0, %r0, %r0, %r0}; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r15];
"""
# Columns 0 and 1 are written, in the warp's lanes.
COLUMNS = """
mov.u32 %r0, %tid.x; mov.u32 %r4, smem; cvt.u64.u32 %rd1, %r0; shl.b64 %rd1, %rd1, 2; add.u64 %rd3, %rd100, %rd1;
setp.lt.u32 %p1, %r0, 16;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32; ld.shared.b32 %r9, [%r4];
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r9], {%r0, %r0}; tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r10, %r11, %r12, %r13}, [%r9]; tcgen05.wait::ld.sync.aligned;
"""
LOADED = """
mov.b32 %r20, 0; AGAIN: tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r10, %r11, %r12, %r13}, [%r9];
setp.lt.u32 %p3, %r0, 32; @%p3 st.global.b32 [%rd3], %r12;
add.u32 %r20, %r20, 1; setp.lt.u32 %p5, %r20, 3; @%p5 bra AGAIN;
"""
FREED = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 32;"
ROUND = "mul.lo.u32 %r15, %r0, 4; add.u32 %r15, %r15, %r4; st.shared.b32 [%r15+2048], %r12; {} bar.sync 0;"
ROUND += "ld.shared.b32 %r14, [%r15+2048]; add.u32 %r14, %r14, 1;"
REGISTERS = {
    "no use": ("", 0),
    "a written register": ("st.global.b32 [%rd3], %r11;", 0),
    "a dead copy": ("add.u32 %r14, %r12, %r13;", 0),
    "shared memory": (
        "mul.lo.u32 %r15, %r0, 4; add.u32 %r15, %r15, %r4;st.shared.b32 [%r15+2048], %r12;",
        1,
    ),
    "an exchange by way of shared memory": (ROUND.format(""), 0),
    "one whose value is used": (ROUND.format("") + "st.global.b32 [%rd3], %r14;", 1),
    "shared memory that a copy may read": (ROUND.format("fence.proxy.async;"), 1),
    "a branch around it": ("@!%p1 bra END; @!%p1 st.global.b32 [%rd3], %r12; END: bar.sync 0;", 0),
    "a guard that is computed behind it": ("setp.gt.u32 %p3, %r0, 31; @%p3 st.global.b32 [%rd3], %r12;", 0),
    "a branch that is computed behind it": (
        "setp.lt.u32 %p3, %r0, 32; @%p3 bra END; st.global.b32 [%rd3], %r12; END: bar.sync 0;",
        0,
    ),
    "a store": ("st.global.b32 [%rd3], %r12;", 1),
    "a store under a guard that is known": ("@%p1 st.global.b32 [%rd3], %r12;", 1),
    "a store behind a barrier": ("bar.sync 0; st.global.b32 [%rd3], %r13;", 1),
    "an exchange": ("shfl.sync.idx.b32 %r14, %r12, 31, 31, -1; st.global.b32 [%rd3], %r14;", 1),
    "a store in one lane": ("setp.eq.u32 %p3, %r0, 31; bar.sync 0; @%p3 st.global.b32 [%rd3], %r13;", 1),
}


@pytest.mark.parametrize("use", REGISTERS)
@pytest.mark.parametrize("load", [MATRICES, COLUMNS], ids=["ldmatrix", "tcgen05.ld"])
def test_registers_of_matrices_and_of_tensor_memory(load: str, use: str) -> None:
    body, count = REGISTERS[use]
    freed = FREED if load is COLUMNS else ""
    found: list[Finding] = []
    try:
        found += run_ptx(load + body + freed, buffers={"out": np.zeros(32, np.uint32)}, shared=4096).grid.findings
    except Fault as fault:
        found.append(fault.finding())
    assert [finding.kind for finding in found] == ["uninitialised"] * count
    for finding in found:
        assert finding.where is not None
        assert finding.where.text.startswith(("ldmatrix", "tcgen05.ld"))


# Columns 0 to 2 of B are written; lane 4 g + t holds columns 2 t and 2 t + 1 of the product.
PRODUCT = """
mov.u32 %r0, %tid.x; mov.u32 %r4, smem; shl.b32 %r3, %r0, 4; add.u32 %r15, %r4, %r3; mov.b32 %r9, 0;
cvt.u64.u32 %rd1, %r0; shl.b64 %rd1, %rd1, 2; add.u64 %rd3, %rd100, %rd1; and.b32 %r5, %r0, 7; and.b32 %r6, %r0, 3;
setp.lt.u32 %p1, %r5, 3; @%p1 st.shared.v4.b32 [%r15], {%r9, %r9, %r9, %r9}; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r15]; setp.eq.u32 %p2, %r6, 0; setp.eq.u32 %p3, %r6, 1;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r20, %r21, %r22, %r23}, {%r9, %r9, %r9, %r9}, {%r10, %r11},
    {%r9, %r9, %r9, %r9};
"""


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("", 0),
        ("@%p2 st.global.v2.b32 [%rd4], {%r20, %r21}; @%p3 st.global.b32 [%rd4], %r22;", 0),
        ("@%p3 st.global.b32 [%rd4], %r21;", 1),
        ("@!%p2 st.global.b32 [%rd4], %r22;", 1),
        ("bar.sync 0; @%p3 st.global.b32 [%rd4], %r23;", 1),
    ],
)
def test_columns_of_a_product(use: str, found: int) -> None:
    body = PRODUCT + "mul.wide.u32 %rd4, %r0, 8; add.u64 %rd4, %rd4, %rd100;" + use
    with pytest.raises(Fault, match=r"ldmatrix.*never written") if found else nullcontext():
        assert not run_ptx(body, buffers={"out": np.zeros(64, np.uint32)}, shared=1024).grid.findings


def test_a_doubtful_use_is_found_when_a_warp_makes_it_again() -> None:
    with pytest.raises(Fault, match="never written"):
        run_ptx(COLUMNS + LOADED + FREED, buffers={"out": np.zeros(32, np.uint32)}, shared=4096)


@pytest.mark.parametrize(
    ("use", "kinds"),
    [
        ("", []),
        ("bar.sync 0; st.global.b32 [%rd3], %r2;", ["in-flight"]),
        ("st.global.b32 [%rd3], %r2;", ["in-flight"]),
    ],
)
def test_bytes_of_a_copy_in_flight(use: str, kinds: list[str]) -> None:
    body = """
        mov.u32 %r0, %tid.x; shl.b32 %r3, %r0, 2; mov.u32 %r4, smem; add.u32 %r1, %r4, %r3;
        cvt.u64.u32 %rd1, %r3; add.u64 %rd3, %rd100, %rd1;
        cp.async.ca.shared.global [%r1], [%rd3], 4; cp.async.commit_group; ld.shared.b32 %r2, [%r1];
    """
    found: list[str] = []
    try:
        run_ptx(body + use, buffers={"out": np.zeros(32, np.uint32)}, shared=4096, asynchronous=Lazy())
    except Fault as fault:
        finding = fault.finding()
        found.append(finding.kind)
        assert finding.where is not None
        assert finding.where.text.startswith("ld.shared.b32")
    assert found == kinds
