"""Every way to order accesses is known, and each of its parts needed: small PTX kernels, with and without an edge."""

from __future__ import annotations

import re

import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Late
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.races.programs import (
    GATHER,
    MINE,
    PEER,
    REACH,
    SMEM,
    STAY,
    by_warp,
    counted,
    finding_kinds,
    findings_of,
    flags,
    gathered,
    peeked,
    pipeline,
    stored,
    used,
)

# ---- barriers ----------------------------------------------------------------------------------------------------

EXCHANGE = (
    "shl.b32 %r8, %r0, 2; add.u32 %r8, %r8, %r3; xor.b32 %r9, %r0, 32; shl.b32 %r9, %r9, 2; add.u32 %r9, %r9, %r3;"
    "st.shared.b32 [%r8], 0; bar.sync 0;"
)
PUT, GET = "st.shared.b32 [%r8], %r0;", "ld.shared.b32 %r20, [%r9];"


@pytest.mark.parametrize("looped", [False, True])
def test_a_reader_that_ran_ahead_is_told_both_ways_to_order_it_in_a_loop(looped: bool) -> None:
    """It should see what is written, or, in a loop, the next round must not overwrite what it reads."""
    again = "add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 2; bar.sync 0; @%p1 bra AGAIN;" if looped else ""
    ((finding,), _) = findings_of(EXCHANGE + "mov.b32 %r10, 0;\nAGAIN:\n" + PUT + "\n" + GET + "\n" + again)
    assert finding.kind == "race"
    assert "may still read it" in finding.message
    assert ("or, if" in finding.hint) is looped
    first, second = map(int, re.findall(r"PTX line (\d+)", finding.hint)[:2])
    assert (first < second) is not looped
    assert finding_kinds(EXCHANGE + PUT + "bar.sync 0;" + GET) == []


@pytest.mark.parametrize(("get", "put"), [(3, 2), (2, 3)])
def test_which_access_comes_first_is_told_by_the_source_and_not_by_what_a_compiler_moved(get: int, put: int) -> None:
    reads, writes = f".loc 1 {get} 1\nld.shared.b32 %r20, [%r6];", f".loc 1 {put} 1\nst.shared.b32 [%r6], %r0;"
    body = "st.shared.b32 [%r6], 0; bar.sync 0;\n" + by_warp(writes, reads)
    ((finding,), _) = findings_of(body, globals_='.file 1 "/a/k.cu"\n')
    assert "may still read it" in finding.message
    assert finding.hint.startswith("bar.sync (__syncthreads()) after k.cu:2 before k.cu:3, in all warps")
    assert "or, if k.cu:" not in finding.hint


def test_what_overwrites_what_was_read_before_it_is_told_one():
    ((finding,), _) = findings_of(EXCHANGE + GET + PUT)
    assert "or, if" not in finding.hint
    assert finding_kinds(EXCHANGE + GET + "bar.sync 0;" + PUT) == []


@pytest.mark.parametrize("one_line", [True, False])
def test_a_line_that_reads_and_writes_is_told_of_atomics(one_line: bool) -> None:
    """Lines here are those of the PTX, so that one line has both instructions only if they stand in one."""
    body = "mov.u64 %rd8, %rd100;\n" + (" " if one_line else "\n").join(
        ["ld.global.b32 %r8, [%rd8];", "add.u32 %r8, %r8, 1;", "st.global.b32 [%rd8], %r8;"]
    )
    ((finding, *_), _) = findings_of(body, grid=(2, 1, 1), block=(32, 1, 1))
    assert finding.kind == "race"
    assert ("an atom or red" in finding.hint) is one_line


def test_a_line_that_writes_twice_is_told_of_its_index():
    loop = "mov.u32 %r9, 0; AGAIN: " + PUT + " add.u32 %r9, %r9, 1; xor.b32 %r8, %r8, 128; setp.lt.u32 %p1, %r9, 2;"
    ((finding, *_), _) = findings_of(EXCHANGE + loop + "@%p1 bra AGAIN;")
    assert "correct the index" in finding.hint
    assert finding_kinds(EXCHANGE + PUT) == []


WRITE, READ = "st.shared.b32 [%r6+512], %r0;", "ld.shared.b32 %r20, [%r6+512];"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("bar.sync 0;", "bar.sync 0;"),
        ("bar.arrive 1, 64;", "bar.sync 1, 64;"),
        ("barrier.cta.sync 3;", "barrier.cta.sync 3;"),
        ("barrier.cluster.arrive; barrier.cluster.wait;",) * 2,
        ("fence.acq_rel.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;",) * 2,
    ],
)
def test_barriers_order(first, second):
    assert finding_kinds(by_warp(WRITE + first, second + READ)) == []
    assert finding_kinds(by_warp(READ_INITIAL + first, second + WRITE)) == []


READ_INITIAL = "st.shared.b32 [%r6+512], %r0; ld.shared.b32 %r20, [%r6+512];"

FIRST_PAIR, SECOND_PAIR = (f"setp.{other}.u32 %p4, %r1, 2; @%p4 bra" for other in ("ge", "lt"))


@pytest.mark.parametrize(
    ("rounds", "kinds"),
    [
        ("bar.sync 1, 64;", ["race"]),
        ("bar.sync 0; bar.sync 1, 64;", ["race"]),
        ("shr.u32 %r10, %r1, 1; bar.sync %r10, 64;", []),
        (f"{FIRST_PAIR} MIDST; bar.sync 1, 64; MIDST: bar.sync 0; {SECOND_PAIR} LAST; bar.sync 1, 64; LAST:", []),
        ("bar.sync 1, 128; bar.sync 1, 128;", []),
        (f"{FIRST_PAIR} TAKE; bar.arrive 1, 128; bar.sync 2, 128; bra ON; TAKE: bar.sync 1, 128; bar.arrive 2, 128; ON:"
         f"{FIRST_PAIR} TAKES; bar.arrive 1, 128; bra LAST; TAKES: bar.sync 1, 128; LAST:", []),
        (f"{FIRST_PAIR} TAKE; bar.arrive 1, 128; bra ON; TAKE: bar.sync 1, 128; ON:"
         f"{FIRST_PAIR} TAKES; bar.sync 1, 128; bra LAST; TAKES: bar.arrive 1, 128; LAST:", ["race", "deadlock"]),
    ],
    ids=["shared by groups", "behind a common barrier", "one of each group", "ordered uses", "one group",
         "there and back", "there and back with one number"],
)  # fmt: skip
def test_an_arrival_belongs_to_one_round_of_its_barrier(rounds, kinds):
    found, faults = findings_of(rounds, block=(128, 1, 1))
    assert [one.kind for one in found] + faults == kinds
    if kinds:
        assert "and nothing orders it behind the last round of that barrier" in found[0].message


@pytest.mark.parametrize(("count", "kinds"), [(64, ["race", "race"]), (128, [])])
def test_a_warp_that_leaves_a_barrier_late_knows_no_later_round(count, kinds):
    """Two warps complete a round of the second barrier before the other two, which take part in it, leave the first."""
    other = EXCHANGE.replace("xor.b32 %r9, %r0, 32", "xor.b32 %r9, %r0, 64")
    body = f"{other} {PUT} bar.sync 1, 128; {PUT} bar.sync 1, {count}; {GET}"
    assert finding_kinds(body, block=(128, 1, 1)) == kinds


def test_a_relaxed_cluster_barrier_orders_nothing():
    relaxed = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
    assert finding_kinds(by_warp(WRITE + relaxed, relaxed + READ)) == ["race"]


def test_no_barrier():
    assert finding_kinds(by_warp(WRITE, READ)) == ["race"]
    assert finding_kinds(by_warp(WRITE, WRITE)) == ["race"]
    assert finding_kinds(by_warp(READ_INITIAL + "bar.sync 0;", "bar.sync 0;" + READ)) == []
    assert finding_kinds(by_warp(WRITE + "bar.sync 0;" + READ, "bar.sync 0;" + WRITE)) == ["race"]


def test_neighbours_in_one_word_do_not_race():
    low, high = "st.shared.b8 [%r3+512], %r0;", "st.shared.b8 [%r3+513], %r0;"
    one = "setp.ne.u32 %p3, %r2, 0; @%p3 bra END{};"
    assert finding_kinds(by_warp(one.format(0) + low + "END0:", one.format(1) + high + "END1:")) == []
    assert finding_kinds(by_warp(one.format(0) + low + "END0:", one.format(1) + low + "END1:")) == ["race"]
    wide = "st.shared.b16 [%r3+512], %rs0;"
    assert finding_kinds(
        by_warp(one.format(0) + high + "END0:", one.format(1) + "mov.b16 %rs0, 1;" + wide + "END1:")
    ) == ["race"]


FIRST_LEAVES = "barrier.cluster.arrive.relaxed; @!%p3 bra ON; barrier.cluster.wait; ON:"
SECOND_LEAVES = "@%p3 bra GONE; barrier.cluster.wait; GONE:"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [(REACH, ["race"]), ("bar.sync 0;" + REACH, ["race"]), (GATHER + REACH, []),
     (FIRST_LEAVES + REACH + SECOND_LEAVES, ["race"]),
     (FIRST_LEAVES + "bar.sync 0;" + REACH + SECOND_LEAVES, [])],
    ids=["nothing", "a barrier of the CTA", "a cluster barrier", "another warp's", "another warp's, and a barrier"],
)  # fmt: skip
def test_a_peer_whose_memory_is_written_has_started(body, kinds):
    assert finding_kinds(PEER + body + STAY, grid=(2, 1, 1), cluster=(2, 1, 1)) == kinds


ALLOCATE = (
    "setp.ne.u32 %p7, %r1, 0; @%p7 bra DONE; tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3], 32;"
    "DONE: bar.sync 0; ld.shared.b32 %r40, [%r3];"
)
FREE = (
    "setp.ne.u32 %p7, %r1, 0; @%p7 bra FREED; tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"
    "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r40, 32; FREED:"
)


@pytest.mark.parametrize(("before", "kinds"), [("", ["race"]), ("bar.sync 0;", ["race"]), (GATHER, []), (STAY, [])])
def test_a_peer_with_which_tensor_memory_is_allocated_has_started(before, kinds):
    found, faults = findings_of(before + ALLOCATE + STAY + FREE, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert [one.kind for one in found] + faults == kinds
    if kinds:
        assert "allocates tensor memory in both CTAs of a pair" in found[0].message


# ---- lanes of one warp -------------------------------------------------------------------------------------------

STORE = "st.shared.b32 [%r6+512], %r0;"
ACROSS = "sub.u32 %r9, 124, %r5; add.u32 %r9, %r9, %r3;"
OTHER = "ld.shared.b32 %r20, [%r9+512];"
MEET = "bar.warp.sync 0xffffffff;"
LANE_0 = "setp.eq.u32 %p3, %r2, 0;"


def lanes(body: str) -> list[str]:
    return finding_kinds(ACROSS + LANE_0 + body, block=(32, 1, 1))


@pytest.mark.parametrize("meet", [MEET, "bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;"])
def test_lanes_that_meet_are_ordered(meet):
    assert lanes(STORE + meet + OTHER + meet + STORE) == []


@pytest.mark.parametrize(
    "nothing",
    ["", "shfl.sync.idx.b32 %r30, %r0, 0, 31, 0xffffffff;", "vote.sync.all.pred %p4, %p3, 0xffffffff;",
     "elect.sync %r30|%p4, 0xffffffff;", "bar.arrive 1, 32;"],
)  # fmt: skip
def test_lanes_that_nothing_orders(nothing):
    assert lanes(STORE + nothing + OTHER) == ["race"]
    assert lanes(STORE + MEET + OTHER + nothing + STORE) == ["race"]
    assert lanes(STORE + nothing + "st.shared.b32 [%r9+512], %r0;") == ["race"]


def test_what_a_lane_wrote_itself_is_its_own():
    assert lanes(STORE + "ld.shared.b32 %r20, [%r6+512];" + STORE) == []
    uniform = "st.shared.b32 [%r3+512], 7;"
    assert lanes(uniform + "ld.shared.b32 %r20, [%r3+512];" + uniform) == ["race"]  # one reads, another has gone on
    assert lanes(uniform + "ld.shared.b32 %r20, [%r3+512];") == []
    assert lanes("@%p3 " + uniform + "ld.shared.b32 %r20, [%r3+512];") == ["race"]
    assert lanes("@%p3 " + uniform + MEET + "ld.shared.b32 %r20, [%r3+512];") == []
    assert lanes("@%p3 " + uniform + "@%p3 ld.shared.b32 %r20, [%r3+512];") == []


def test_bytes_of_one_word_are_lanes_of_their_own():
    assert lanes("add.u32 %r9, %r3, %r2; st.shared.b8 [%r9+512], %r0; ld.shared.b8 %r20, [%r9+512];") == []
    assert lanes("add.u32 %r9, %r3, %r2; st.shared.b8 [%r9+512], %r0; ld.shared.b8 %r20, [%r9+511];")[-1:] == ["race"]


def test_atomics_and_volatile_accesses_of_lanes_do_not_race():
    assert lanes(STORE + MEET + "red.shared.add.u32 [%r6+512], 1; red.shared.add.u32 [%r9+512], 1;") == []
    assert lanes(STORE + MEET + "red.shared.add.u32 [%r6+512], 1;" + OTHER) == ["race"]
    assert lanes("st.volatile.shared.b32 [%r6+512], %r0; ld.volatile.shared.b32 %r20, [%r9+512];") == []


def test_a_matrix_is_held_by_the_lanes_that_have_its_elements():
    row = "and.b32 %r9, %r2, 7; shl.b32 %r9, %r9, 4; add.u32 %r9, %r9, %r3;"
    put = row + "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r9+512], {%r0};"
    assert lanes(put + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r9+512];") == []
    assert lanes(put + "ld.shared.b32 %r20, [%r6+512];") == []  # lane 4 r + c holds columns 2 c and 2 c + 1 of row r
    turned = "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r20}, [%r9+512];"
    assert lanes(put + turned) == ["race"]
    assert lanes(put + MEET + turned) == []


def test_lanes_of_a_warp_are_told_as_that():
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    ran = run_ptx(SMEM + MINE + ACROSS + STORE + OTHER, machine=machine, shared=8192)
    (finding,) = ran.grid.findings
    assert "different lanes of the warp, and no bar.warp.sync orders them" in finding.message
    assert "reads shared memory bytes [512, 640)" in finding.message
    assert "bar.warp.sync" in finding.hint


@pytest.mark.parametrize(
    ("warps", "message", "hint"),
    [
        (1, "different lanes of the warp", "bar.warp.sync after"),
        (2, "(red.shared) in warp 1 of", "bar.sync after"),
    ],
)
def test_lanes_and_warps_that_race_alike_are_told_what_orders_both(warps: int, message: str, hint: str):
    """A barrier of the CTA is missing, which lanes of the writing warp lack first: one of the warp would not do."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    body = ACROSS + by_warp(STORE, "") + "red.shared.add.u32 [%r9+512], 1;"
    ran = run_ptx(SMEM + MINE + body, machine=machine, shared=8192, block=(32 * warps, 1, 1))
    (finding,) = ran.grid.findings
    assert message in finding.message
    assert finding.hint.startswith(hint)


def test_barriers_that_are_used_before_their_initialisation_are_one_finding():
    """One ``bar.sync`` is missing: one finding, whatever uses the barriers, and nothing of what else it would order."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    inits = "setp.ne.u32 %p8, %r0, 0; @%p8 bra MADE;" + "".join(
        f"mbarrier.init.shared::cta.b64 [%r3+{8 * i}], 1;" for i in range(3)
    )
    uses = "".join(f"mbarrier.arrive.shared::cta.b64 _, [%r3+{8 * i}];" for i in range(3))
    body = inits + "st.shared.b32 [%r3+512], %r0; MADE: setp.ne.u32 %p7, %r2, 0; @%p7 bra END;"
    body += by_warp("", uses + "ld.shared.b32 %r20, [%r3+512];", uses) + "END:"
    ran = run_ptx(SMEM + MINE + body, machine=machine, shared=8192, block=(96, 1, 1))
    (finding,) = ran.grid.findings
    assert finding.kind == "race"
    assert "nothing orders it after the initialisation" in finding.message
    assert finding.hint.endswith("before a relaxed one, fence.mbarrier_init in the thread that initialises")
    assert "in warp 1" in finding.message
    assert [("warp 2" in note) for note in finding.notes] == [True]


def test_an_initialisation_that_is_repeated_before_any_use_is_named_as_such():
    """A barrier is behind the first one only."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    init = "@%p9 mbarrier.init.shared::cta.b64 [%r3], 32;"
    use = by_warp("mbarrier.arrive.shared::cta.b64 _, [%r3];", "")
    body = f"setp.eq.u32 %p9, %r0, 32; {init} bar.sync 0; {init} {use}"
    ran = run_ptx(SMEM + MINE + body, machine=machine, shared=8192, block=(64, 1, 1))
    (finding,) = ran.grid.findings
    assert "nothing orders it after the repeated initialisation" in finding.message
    assert finding.hint.startswith("initialise an mbarrier once")


@pytest.mark.parametrize(("between", "notes"), [("\n", 9), (" ", 1)], ids=["lines of their own", "one line"])
def test_every_line_of_a_defect_is_named(between: str, notes: int):
    """Who accepts a race by its lines must see all of them; pairs of the same lines are counted in one note."""
    lanes = "shl.b32 %r8, %r2, 2; add.u32 %r8, %r8, %r3;"
    writes = [f"st.shared.b32 [%r8+{512 + 128 * warp}], %r0;" for warp in range(10)]
    body = by_warp(" ".join(writes), *writes).replace("\n", between)
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    ran = run_ptx(f"{SMEM}{lanes}\n{body}", machine=machine, shared=8192, block=(352, 1, 1))
    (finding,) = ran.grid.findings
    assert (finding.kind, len(finding.notes)) == ("race", notes)
    assert [note.endswith(", and 8 more pairs of these lines") for note in finding.notes] == [notes == 1] * notes


# ---- pipelines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_pipelines(stages):
    assert finding_kinds(pipeline(stages)) == []
    assert "race" in finding_kinds(pipeline(stages, drop="empty"))
    assert finding_kinds(pipeline(stages, drop="order")) == ["race"]
    assert "race" in finding_kinds(
        pipeline(stages, drop="full"),
    ) or "race" in finding_kinds(pipeline(stages, drop="full"), asynchronous=Late([1]))
    assert finding_kinds(pipeline(stages, drop="release")) == ["deadlock"]
    assert finding_kinds(pipeline(stages, drop="barrier"))[0] in ("race", "mbarrier")


def test_a_test_for_the_wrong_parity_is_found_where_it_does_not_hold():
    """The data are there, and the wait behind it holds; a warp that comes earlier goes on without either."""
    assert finding_kinds(peeked(0, 0), asynchronous=Late([1])) == []
    assert finding_kinds(peeked(1, 0), asynchronous=Late([1])) == ["race"]
    assert finding_kinds(peeked(0, 0), asynchronous=Late([0])) == []
    assert "race" in finding_kinds(peeked(1, 0), asynchronous=Late([0]))  # what it is about: no edge at all


def test_a_wait_whose_result_nothing_reads_orders_nothing():
    """The peek of a pipeline that lost its wait; with the wait behind it, it does no harm."""
    peek, _, rest = peeked(0, 0).partition("%p1, [%r3], 0; @%p1 bra SEEN;")
    assert finding_kinds(f"{peek}%p50, [%r3], 0;{rest}") == []
    lost = f"{peek}%p50, [%r3], 0;{rest.partition('SEEN:')[2]}"
    assert finding_kinds(lost) == ["race"]
    load = "ld.shared.b32 %r20, [%r6+512];"
    used = lost.replace(load, f"{load} setp.ne.u32 %p40, %r20, 77; @%p40 bra USED; USED:")
    assert finding_kinds(used) == ["uninitialised", "race"]  # the early data decide a branch


# ---- bulk stores and the async proxy -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("without", "kind"),
    [({}, None), ({"fence": ""}, "proxy"), ({"wait": ""}, "race"), ({"again": ""}, "race"),
     ({"fence": "fence.proxy.async.global;"}, "proxy"), ({"commit": ""}, "race"),
     ({"wait": "cp.async.bulk.wait_group 0;"}, None), ({"wait": "cp.async.bulk.wait_group.read 1;"}, "race"),
     ({"fence": "fence.proxy.async;"}, None)],
)  # fmt: skip
def test_bulk_stores(without, kind):
    kinds = [one for one in finding_kinds(stored(**without)) if one in ("race", "proxy")]
    assert kinds == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("write", "wait", "fence", "kinds"),
    [
        ("cp.async.ca.shared.global [%r7+1024], [%rd6], 4;", "cp.async.wait_all;", "", ["race-warning"]),
        ("cp.async.ca.shared.global [%r7+1024], [%rd6], 4;", "cp.async.wait_all;", "fence.proxy.async;", []),
        ("cp.async.ca.shared.global [%r7+1024], [%rd6], 4;", "", "fence.proxy.async;", ["race"]),
        ("st.shared.b32 [%r7+1024], %r0;", "", "", ["proxy"]),
        ("st.shared.b32 [%r7+1024], %r0;", "", "fence.proxy.async;", []),
    ],
)
def test_official_kernels_leave_out_the_proxy_fence_behind_cp_async_alone(write, wait, fence, kinds):
    assert finding_kinds(gathered(write, wait, fence)) == kinds


# ---- flags between CTAs ------------------------------------------------------------------------------------------


RELEASES = {
    "red after a fence": "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd101], %r10;",
    "membar": "membar.gl; st.volatile.global.b32 [%rd101], %r10;",
    "st.release": "st.release.gpu.global.b32 [%rd101], %r10;",
    "atom.acq_rel": "atom.acq_rel.gpu.global.add.u32 %r12, [%rd101], %r10;",
}
ACQUIRES = {
    "ld.acquire": "ld.acquire.gpu.global.b32 %r11, [%rd101];",
    "relaxed and a fence": "ld.relaxed.gpu.global.b32 %r11, [%rd101];",
    "atom.acquire": "atom.acquire.gpu.global.add.u32 %r11, [%rd101], 0;",
}
BAD_RELEASES = {
    "no fence": "red.relaxed.gpu.global.add.u32 [%rd101], %r10;",
    "a fence of the CTA": "fence.acq_rel.cta; red.relaxed.gpu.global.add.u32 [%rd101], %r10;",
    "a release of the CTA": "st.release.cta.global.b32 [%rd101], %r10;",
}
BAD_ACQUIRES = {
    "volatile, no fence": "ld.volatile.global.b32 %r11, [%rd101];",
    "an acquire of the CTA": "ld.acquire.cta.global.b32 %r11, [%rd101];",
}


@pytest.mark.parametrize("acquire", ACQUIRES)
@pytest.mark.parametrize("release", RELEASES)
def test_flags_order_clusters(release, acquire):
    assert finding_kinds(flags(RELEASES[release], ACQUIRES[acquire]), grid=(2, 1, 1)) == []


@pytest.mark.parametrize("release", BAD_RELEASES)
def test_a_release_that_is_none(release):
    assert finding_kinds(flags(BAD_RELEASES[release], ACQUIRES["ld.acquire"]), grid=(2, 1, 1)) == ["race"]


@pytest.mark.parametrize("acquire", BAD_ACQUIRES)
def test_an_acquire_that_is_none(acquire):
    assert finding_kinds(flags(RELEASES["st.release"], BAD_ACQUIRES[acquire]), grid=(2, 1, 1)) == ["race"]


def test_clusters_that_do_not_speak():
    place = "cvt.u64.u32 %rd5, %r5; add.u64 %rd6, %rd100, %rd5;"
    share = (
        "setp.ne.u32 %p7, %r4, 0; @%p7 bra B; st.global.b32 [%rd6], %r0; bra END; B: ld.global.b32 %r20, [%rd6]; END:"
    )
    assert finding_kinds(place + share, grid=(2, 1, 1), block=(32, 1, 1)) == ["race"]
    assert finding_kinds(place + "ld.global.b32 %r20, [%rd6];", grid=(2, 1, 1), block=(32, 1, 1)) == []
    other = (
        "setp.eq.u32 %p7, %r4, 0; @%p7 bra B; st.global.b32 [%rd6], %r0; bra END; B: ld.global.b32 %r20, [%rd6]; END:"
    )
    assert finding_kinds(place + other, grid=(2, 1, 1), block=(32, 1, 1)) == ["race"]


@pytest.mark.parametrize(
    ("value", "kinds"), [("7", []), ("%r1", ["race"]), ("%r4", ["race"])], ids=["equal", "by warp", "by CTA"]
)
def test_warps_that_store_the_same_value_do_no_harm(value, kinds):
    """By one instruction, so that it is the same in any order; another instruction, or a reader, is another matter."""
    inside = f"mov.u32 %r30, {value}; st.shared.b32 [%r3+512], %r30;"
    assert finding_kinds(inside) == ([] if value != "%r1" else kinds)
    assert finding_kinds(by_warp(inside, inside)) == ["race"]
    assert finding_kinds(f"mov.u32 %r30, %r1; st.shared.v2.b32 [%r3+512], {{{value}, %r30}};") == ["race"]
    store = f"mov.u32 %r30, {value}; st.global.b32 [%rd100+64], %r30;"
    assert finding_kinds(store, grid=(2, 1, 1)) == kinds
    assert finding_kinds(by_warp(store, store)) == ["race"]
    third = "setp.eq.u32 %p9, %r1, 2; @%p9 bra THIRD;" + store + "bra END; THIRD: ld.global.b32 %r31, [%rd100+64]; END:"
    assert finding_kinds(third, block=(96, 1, 1))[:1] == ["race"]


@pytest.mark.parametrize(("step", "kinds"), [(16, []), (8, ["race"])], ids=["equal", "different"])
def test_warps_that_store_the_same_values_to_some_of_their_bytes_do_no_harm(step, kinds):
    """Each warp stores to 32 words, half of them those of the warp before; equal if the values follow the addresses."""
    store = (
        f"shl.b32 %r30, %r1, 4; add.u32 %r30, %r30, %r2; mul.lo.u32 %r31, %r1, {step}; add.u32 %r31, %r31, %r2;"
        "mul.wide.u32 %rd20, %r30, 4; add.u64 %rd20, %rd20, %rd100; st.global.b32 [%rd20], %r31;"
    )
    assert finding_kinds(store) == kinds


@pytest.mark.parametrize(
    ("value", "kinds"),
    [("%r2", []), ("%r0", ["race"]), ("%r30", ["race"])],
    ids=["equal", "by warp", "the last row by warp"],
)
def test_warps_that_store_the_same_matrices_do_no_harm(value, kinds):
    """All rows are compared: a warp's lanes 28 to 31 hold the last one of a matrix."""
    last = "setp.ge.u32 %p9, %r2, 28; selp.b32 %r30, %r1, 7, %p9; shl.b32 %r31, %r2, 4; add.u32 %r31, %r31, %r3;"
    store = f"stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r31], {{%r2, {value}}};"
    assert finding_kinds(last + store) == kinds
    assert finding_kinds(last + by_warp(store, store)) == ["race"]
    assert finding_kinds(last + store + "bar.sync 0;" + store.replace("x2", "x1").replace(f", {value}", "")) == kinds


def test_atomics_do_not_race_with_each_other():
    assert finding_kinds("red.global.add.u32 [%rd100], 1;", grid=(4, 1, 1)) == []
    assert finding_kinds("red.global.add.u32 [%rd100], 1; ld.global.b32 %r20, [%rd100];", grid=(2, 1, 1)) == ["race"]


def test_an_atomic_hides_no_plain_access_before_it():
    zero = "setp.eq.u32 %p3, %r0, 0; @%p3 st.shared.b32 [%r3+512], 0;"
    add = "red.shared.add.u32 [%r3+512], 1;"
    assert finding_kinds(zero + "bar.sync 0;" + add) == []
    assert finding_kinds(zero + "bar.warp.sync 0xffffffff;" + add) == ["race"]
    read = "@%p3 ld.shared.b32 %r20, [%r3+512];"
    begun = zero + "bar.sync 0;"
    assert finding_kinds(begun + read + "bar.sync 0;" + add) == []
    assert finding_kinds(begun + read + "bar.warp.sync 0xffffffff;" + add) == ["race"]


def test_an_atomic_in_global_memory_hides_no_plain_access_before_it():
    first = "setp.eq.u32 %p3, %r0, 0; setp.eq.u32 %p4, %r0, 32; mov.u64 %rd5, %rd100;"
    zero, add, read = (
        "@%p3 st.global.b32 [%rd5], 0;",
        "red.global.add.u32 [%rd5], 1;",
        "@%p3 ld.global.b32 %r20, [%rd5];",
    )
    lane = "@%p4 "
    assert finding_kinds(first + zero + "bar.sync 0;" + add) == []
    # The writer's own warp adds first, so that its atomic is what the other warp's meets.
    alone = "@%p3 " + add
    assert finding_kinds(first + by_warp(zero + alone, lane + add)) == ["race"]
    assert finding_kinds(first + by_warp(zero + alone + "bar.sync 0;", "bar.sync 0;" + lane + add)) == []
    begun = zero + "bar.sync 0;"
    assert finding_kinds(first + begun + by_warp(read + alone, lane + add)) == ["race"]
    assert finding_kinds(first + begun + by_warp(read + alone + "bar.sync 0;", "bar.sync 0;" + lane + add)) == []
    # Two add; a third, who has waited for the second only, reads.
    some, all_of_them, take = "bar.sync 1, 64;", "bar.sync 1, 96;", "ld.global.b32 %r20, [%rd5];"
    one_waits = by_warp(alone, lane + add + some, some + take)
    each_waits = by_warp(alone + all_of_them, lane + add + all_of_them, all_of_them + take)
    assert finding_kinds(first + begun + one_waits, block=(96, 1, 1)) == ["race"]
    assert finding_kinds(first + begun + each_waits, block=(96, 1, 1)) == []


COUNT = "setp.ne.u32 %p8, %r0, 0; @%p8 bra COUNTED; atom.global.add.u32 %r10, [%rd100], 1;"
LAST = "setp.ne.u32 %p7, %r10, 1; @%p7 bra COUNTED;"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (COUNT + LAST + "st.global.b32 [%rd100], 0; COUNTED:", []),
        (COUNT + LAST + "ld.global.b32 %r20, [%rd100]; COUNTED:", []),
        (COUNT + "st.global.b32 [%rd100], 0; COUNTED:", ["race"]),
        (COUNT.replace("atom", "red").replace("%r10, ", "") + "ld.global.b32 %r20, [%rd100]; COUNTED:", ["race"]),
        (COUNT.replace("[%rd100]", "[%rd101]") + LAST + "st.global.b32 [%rd100], %r0; COUNTED: red.global.add.u32 "
         "[%rd100], 1;", ["race"]),
        (COUNT + "st.shared.b32 [%r3+512], %r10; COUNTED: bar.sync 0; ld.shared.b32 %r10, [%r3+512];"
         "setp.ne.u32 %p7, %r10, 1; setp.ne.or.u32 %p7, %r0, 40, %p7; @!%p7 st.global.b32 [%rd100], 0;", []),
        (COUNT + LAST + "COUNTED: setp.eq.u32 %p7, %r4, 1; setp.eq.and.u32 %p7, %r0, 40, %p7;"
         "@%p7 st.global.b32 [%rd100], 0;", ["race"]),
    ],
    ids=["who is last resets", "who is last reads", "each resets", "without the value", "another place's count",
         "another warp behind a barrier", "another warp"],
)  # fmt: skip
def test_who_counts_last_may_reset_the_counter_by_a_plain_store(body, kinds):
    """As in the example of the CUDA Programming Guide, "Memory Fence Functions"."""
    assert sorted(set(finding_kinds(body, grid=(2, 1, 1)))) == kinds


@pytest.mark.parametrize("left_out", [None, 0, 1, 2, 3])
def test_who_reads_has_waited_for_each_that_adds(left_out):
    lane, add = "setp.eq.u32 %p4, %r2, 0; @%p4 ", "red.global.add.u32 [%rd100], 1;"
    adds = [lane + add + ("" if warp == left_out else f"bar.arrive {warp + 1}, 64;") for warp in range(4)]
    waits = "".join(f"bar.sync {warp + 1}, 64;" for warp in range(4) if warp != left_out)
    kinds = finding_kinds(by_warp(*adds, waits + "ld.global.b32 %r20, [%rd100];"), block=(160, 1, 1))
    assert kinds == ([] if left_out is None else ["race"])


@pytest.mark.parametrize(
    ("release", "acquire", "races"),
    [("membar.gl;", "membar.gl;", False), ("fence.sc.gpu;", "membar.gl;", False), ("", "membar.gl;", True),
     ("membar.gl;", "", True), ("fence.acq_rel.gpu;", "membar.gl;", True), ("membar.cta;", "membar.gl;", True),
     ("membar.gl;", "fence.acq_rel.gpu;", True)],
)  # fmt: skip
def test_fences_of_all_threads_around_a_count_of_one(release, acquire, races):
    assert finding_kinds(counted(release, acquire), grid=(2, 1, 1)) == (["race"] if races else [])


@pytest.mark.parametrize(
    ("write", "read", "kinds"),
    [
        ("st.global.b32 [%rd6], %r0;", "ld.global.nc.b32 %r20, [%rd6];", ["race"]),
        ("st.global.b32 [%rd6], %r0;", "ld.global.b32 %r20, [%rd6];", []),
        ("st.global.b32 [%rd6], %r0;", "ld.global.nc.b32 %r20, [%rd6+256];", []),
        ("ld.global.nc.b32 %r20, [%rd6];", "st.global.b32 [%rd6], %r0;", []),
    ],
    ids=["what was written", "a coherent load", "other bytes", "before the write"],
)
def test_a_non_coherent_load_reads_what_the_launch_does_not_write(write, read, kinds):
    address = "shl.b32 %r5, %r2, 2; cvt.u64.u32 %rd5, %r5; add.u64 %rd6, %rd100, %rd5;"
    found, faults = findings_of(address + by_warp(write + "bar.sync 0;", "bar.sync 0;" + read))
    assert [one.kind for one in found] + faults == kinds
    if kinds:
        assert "(ld.global.nc.b32) in warp 1 of CTA (0, 0, 0) reads x" in found[0].message


# ---- cp.async ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "races"),
    [("cp.async.commit_group; cp.async.wait_group 0;", False), ("cp.async.wait_all;", False), ("", True),
     ("cp.async.commit_group; cp.async.wait_group 1;", True)],
)  # fmt: skip
def test_cp_async(wait, races):
    body = f"cp.async.ca.shared.global [%r6+512], [%rd100], 4; {wait} bar.sync 0;"
    kinds = finding_kinds(by_warp(body, "bar.sync 0;" + READ))
    assert kinds == (["race"] if races else [])


COPIES = "cp.async.ca.shared.global [%r6+512], [%rd100], 4; cp.async.wait_all;"


@pytest.mark.parametrize("other", [False, True], ids=["read, then copied over", "read before the copy"])
def test_a_barrier_is_missing_between_a_copy_of_another_warp_and_a_read(other: bool) -> None:
    body = by_warp(COPIES, READ) if other else by_warp(READ, COPIES)
    found, _ = findings_of(body, asynchronous=Late([0]) if other else None)
    finding = found[-1]  # behind the read of what nothing has written yet
    assert finding.kind == "race"
    assert finding.hint.startswith("bar.sync after ")
    assert (" and its cp.async.wait_group before " in finding.hint) == other


# ---- messages ----------------------------------------------------------------------------------------------------


def test_one_defect_is_one_finding_and_says_what_is_missing():
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    body = by_warp(WRITE + "st.shared.b32 [%r6+1024], %r0;", READ + "ld.shared.b32 %r21, [%r6+1024];" + WRITE)
    ran = run_ptx(SMEM + MINE + used(body), machine=machine, shared=8192, block=(64, 1, 1))
    (finding,) = ran.grid.findings
    assert "reads shared memory bytes [512, 640)" in finding.message
    assert "ld.shared) in warp 1 of CTA (0, 0, 0)" in finding.message
    assert "st.shared) in warp 0 of CTA (0, 0, 0) may still write it" in finding.message
    assert "no barrier, and no arrive" in finding.message
    assert finding.where.warp == 1


def test_ctas_that_write_one_element_are_told_as_two_ctas():
    ((finding,), _) = findings_of("st.global.b32 [%rd100+64], %r4;", grid=(2, 1, 1), block=(32, 1, 1))
    assert "no flag or counter" in finding.message
    assert "CTA (0, 0, 0) and CTA (1, 0, 0)" in finding.message
    assert "lanes" not in finding.message
    assert "correct the tile" in finding.hint
