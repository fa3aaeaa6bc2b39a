"""Races of reads whose value is never used: no finding; a finding as soon as anything may use the value."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.finding import Finding
from tests.sim.races.programs import by_warp, findings_of

# Each thread has an output of its own at rd3. Warp 0 writes a word of shared memory, all others read it.
START = "cvt.u64.u32 %rd1, %r0; shl.b64 %rd1, %rd1, 2; add.u64 %rd3, %rd100, %rd1; mov.b32 %r30, 0;"
WRITE, READ = "st.shared.b32 [%r3], %r4;", "ld.shared.b32 %r20, [%r3];"
PUT = "st.global.b32 [%rd3], %r20;"
UNREAD = "mov.b32 %r20, 0; mov.b32 %r23, 0;"
"""What a warp stores that does not read."""
SECOND = "setp.eq.u32 %p2, %r1, 1; @!%p2 bra.uni REST; {} REST:"
"""What warp 1 alone executes."""


def found(body: str, *, warps: int = 3, processes: int = 1, grid: int = 1) -> list[Finding]:
    buffers = {"x": np.zeros(512, np.uint32), "y": np.zeros(512, np.uint32)}
    findings, faults = findings_of(
        START + body, block=(32 * warps, 1, 1), grid=(grid, 1, 1), buffers=buffers, processes=processes, as_it_is=True
    )
    assert faults == []
    return findings


def written_first(use: str) -> str:
    """Warp 0 writes, and the others read afterwards, without an order."""
    return by_warp(WRITE, "bra GET;", "bra GET;", tail=f"bra.uni END; GET: {READ} {use} END:")


def read_first(use: str, again: str = "", late: str = "") -> str:
    """Warps 1 and 2 read and then arrive at a barrier, warp 0 waits and writes, and does so without the others' arrive.

    ``again`` follows the read, ``use`` the barrier that shows that they have read, and ``late`` the write.
    """
    return (
        f"setp.eq.u32 %p1, %r1, 0; @%p1 bra WRITER; {READ} {again} bra.uni NEXT; NEXT: {use} "
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r3+64]; bra.uni DONE;"
        "WRITER: W: mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p5, [%r3+64], 0; @!%p5 bra W;"
        f"st.shared.b32 [%r3], %r4; DONE: bar.sync 0; {late}"
    )


INIT = (
    "setp.eq.u32 %p6, %r0, 0; @%p6 mbarrier.init.shared::cta.b64 [%r3+64], 64; @%p6 st.shared.b32 [%r3], %r30;"
    "bar.sync 0;"
)

UNUSED = {
    "nothing": "",
    "arithmetic": "mul.lo.u32 %r21, %r20, 3; setp.eq.u32 %p4, %r21, 0; selp.b32 %r22, 1, 2, %p4;",
    "an exchange": "bra.uni NEAR; NEAR: shfl.sync.idx.b32 %r21, %r20, 31, 31, -1; add.u32 %r21, %r21, 1;",
    "overwritten": "mov.b32 %r20, 5; " + PUT,
    "loaded anew": "bar.sync 1, 64; mov.b32 %r20, 1;" + PUT,
}
USED = {
    "a store": PUT,
    "a store in a later block": "bra.uni LATER; LATER: " + PUT,
    "times 0": "mul.lo.u32 %r20, %r20, 0; bra.uni LATER; LATER: " + PUT,
    "a selected value": "setp.ne.u32 %p4, %r2, 99; selp.b32 %r20, %r20, 2, %p4; bra.uni LATER; LATER: " + PUT,
    "a predicate that selects": "setp.eq.u32 %p4, %r20, 7; selp.b32 %r20, 1, 2, %p4; bra.uni LATER; LATER: " + PUT,
    "a guard that is false": "setp.eq.u32 %p4, %r20, 12345; bra.uni LATER; LATER: @%p4 st.global.b32 [%rd3], %r0;",
    "a branch": "setp.eq.u32 %p4, %r20, 12345; bra.uni LATER; LATER: @%p4 bra END1; END1: bar.sync 1, 64;",
    "an address": "and.b32 %r21, %r20, 0; add.u32 %r21, %r21, %r3; bra.uni LATER; LATER: ld.shared.b32 %r22, [%r21+4];",
    "an exchange": "bra.uni LATER; LATER: shfl.sync.idx.b32 %r21, %r20, 31, 31, -1; st.global.b32 [%rd3], %r21;",
    "an exchange with one lane that uses it": "shfl.sync.bfly.b32 %r21, %r20, 3, 31, -1; setp.eq.u32 %p4, %r2, 0;"
    "bra.uni LATER; LATER: @%p4 st.global.b32 [%rd3], %r21;",
    "a vote": "setp.eq.u32 %p4, %r20, 0; bra.uni LATER; LATER: vote.sync.ballot.b32 %r21, %p4, -1;",
    "local memory": ".local .align 4 .b8 own[4]; bra.uni LATER; LATER: st.local.b32 [own], %r20;",
    "shared memory": "bra.uni LATER; LATER: st.shared.b32 [%r6+512], %r20;",
    "a carry": "bra.uni LATER; LATER: add.cc.u32 %r21, %r20, 1; addc.u32 %r22, %r0, 0; st.global.b32 [%rd3], %r22;",
    "one warp of two": "bra.uni LATER; LATER: " + SECOND.format(PUT),
}


@pytest.mark.parametrize("use", UNUSED)
def test_a_read_behind_the_write_without_a_use(use: str) -> None:
    assert found(written_first(UNUSED[use])) == []


def test_a_read_behind_the_write_whose_value_a_selection_drops() -> None:
    assert (
        found(written_first("setp.eq.u32 %p4, %r2, 99; selp.b32 %r20, %r20, 2, %p4; bra.uni LATER; LATER: " + PUT))
        == []
    )


@pytest.mark.parametrize("use", USED)
def test_a_read_behind_the_write_with_a_use(use: str) -> None:
    (finding,) = found(written_first(USED[use]))
    assert finding.kind == "race"
    assert finding.where is not None
    assert finding.where.text.startswith("ld.shared")
    if "one" in use:
        assert "in warp 1 of" in finding.message


@pytest.mark.parametrize("use", UNUSED)
def test_a_read_before_the_write_without_a_use(use: str) -> None:
    assert found(INIT + read_first("", again=UNUSED[use])) == []


@pytest.mark.parametrize("use", USED)
def test_a_read_before_the_write_with_a_use(use: str) -> None:
    (finding,) = found(INIT + read_first(USED[use]))
    assert finding.kind == "race"
    assert finding.where is not None
    assert finding.where.text.startswith("st.shared")


def test_the_use_may_follow_the_write() -> None:
    assert [one.kind for one in found(UNREAD + INIT + read_first("", late="@!%p1 " + PUT))] == ["race"]
    assert found(UNREAD + INIT + read_first("", late="@%p1 " + PUT)) == []


def test_the_finding_goes_on_with_the_pair_that_stands() -> None:
    """The first pair of the finding is of a dead read, and a note of it of one that is used."""
    other = "ld.shared.b32 %r23, [%r3]; bra.uni LATER; LATER: " + SECOND.format("st.global.b32 [%rd3], %r23;")
    (finding,) = found(written_first(other))
    assert "in warp 1 of" in finding.message
    assert finding.notes == ()


@pytest.mark.parametrize(("first", "second"), [("%r20", "%r23"), ("%r23", "%r20")])
def test_a_dead_read_hides_no_other_of_its_warp(first: str, second: str) -> None:
    """The last read of a place is the one that is known, and one of the two is used."""
    twice = f"ld.shared.b32 {second}, [%r3]; bra.uni LATER; LATER:"
    body = read_first("", again=twice + PUT).replace(READ, f"ld.shared.b32 {first}, [%r3];")
    assert [one.kind for one in found(UNREAD + INIT + body)] == ["race"]


def test_a_dead_read_orders_nothing() -> None:
    """Behind the dead read of one word the warp reads another one, which races too."""
    both = by_warp(
        "st.shared.b32 [%r3], %r4; st.shared.b32 [%r3+128], %r4;",
        "ld.shared.b32 %r20, [%r3]; ld.shared.b32 %r21, [%r3+128]; st.global.b32 [%rd3], %r21;",
    )
    (finding,) = found(both, warps=2)
    assert "[128, 132)" in finding.message


@pytest.mark.parametrize(("exits", "count"), [("@%p1 exit;", 0), ("@!%p1 exit;", 1)])
def test_lanes_that_exit_use_nothing(exits: str, count: int) -> None:
    """Each lane of warp 1 reads a word; warp 0 has written half of the words, without an order."""
    write = "setp.lt.u32 %p1, %r2, 16; @{}%p1 st.shared.b32 [%r6], %r4;"
    read = f"bar.warp.sync -1; ld.shared.b32 %r20, [%r6]; bra.uni LATER; LATER: {exits} {PUT}"
    assert len(found(by_warp(write.format(""), write.format("!") + read), warps=2)) == count


@pytest.mark.parametrize(("use", "count"), [("", 0), (PUT.replace("rd3", "rd5"), 1)])
def test_global_memory(use: str, count: int) -> None:
    body = "add.u64 %rd5, %rd101, %rd1;" + by_warp(
        "st.global.b32 [%rd100], %r4;", "ld.global.b32 %r20, [%rd100]; bra.uni LATER; LATER: " + use
    )
    assert len(found(body, warps=2)) == count


@pytest.mark.parametrize(("use", "count"), [("", 0), (PUT, 1)])
def test_in_several_processes(use: str, count: int) -> None:
    spin = "mov.b32 %r25, 0; SPIN: add.u32 %r25, %r25, 1; setp.lt.u32 %p7, %r25, 20000; @%p7 bra SPIN;"
    own = "mul.wide.u32 %rd6, %r4, 384; add.u64 %rd3, %rd3, %rd6;"
    body = own + spin + written_first("bra.uni LATER; LATER: " + use)
    assert len(found(body, processes=2, grid=4)) == count
