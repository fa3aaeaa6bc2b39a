"""Which wait the report of a deadlock names first, and how it tells of warps and CTAs that are alike."""

from __future__ import annotations

import pytest

from pytest_nvfp4.sim.fault import Fault
from tests.sim.ptx_case import run_ptx

PIPELINE = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [smem], {full};
mbarrier.init.shared.b64 [smem+8], {empty};
mbarrier.init.shared.b64 [smem+16], 1; mbarrier.init.shared.b64 [smem+24], 1;
READY: bar.sync 0;
setp.eq.s32 %p1, %r2, 0; @%p1 bra EPILOGUE;
setp.eq.s32 %p1, %r2, 1; @%p1 bra CONSUMER;
EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [smem+8], {parity}; @!%p2 bra EMPTY;
elect.sync %r9|%p3, -1; @!%p3 bra END;
mbarrier.arrive.expect_tx.shared.b64 _, [smem], {bytes};
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem], 64;
bra END;
CONSUMER: mbarrier.try_wait.parity.shared.b64 %p2, [smem], {consume}; @!%p2 bra CONSUMER;
elect.sync %r9|%p3, -1; @!%p3 bra END;
mbarrier.arrive.shared.b64 _, [smem+{signal}];
bra END;
EPILOGUE: mbarrier.try_wait.parity.shared.b64 %p2, [smem+16], 0; @!%p2 bra EPILOGUE;
{after}
END: bar.sync 0;
"""


REST = {"consume": 0, "signal": 16, "after": ""}
STORE = "cp.async.bulk.wait_group.read 0; cp.async.bulk.global.shared::cta.bulk_group [%rd100], [smem], 16;"
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [smem+32], [%rd100], 16, [smem+16];"


def stuck(grid: int = 1, **changes: int | str) -> Fault:
    body = PIPELINE.format(**{"full": 1, "empty": 1, "parity": 1, "bytes": 64} | REST | changes)
    with pytest.raises(Fault) as caught:
        run_ptx(body, grid=(grid, 1, 1), block=(96, 1, 1), shared=64)
    assert caught.value.kind == "deadlock"
    return caught.value


def test_the_pipeline_itself_ends() -> None:
    run_ptx(PIPELINE.format(full=1, empty=1, parity=1, bytes=64, **REST), block=(96, 1, 1), shared=64)


@pytest.mark.parametrize(
    ("changes", "warp", "words"),
    [
        ({"full": 2}, 1, "never completes: 1 of 2 arrivals of phase 0 came, by warp 2"),
        ({"bytes": 48}, 2, "16 bytes too many: 64 arrived, expect_tx announced 48"),
        ({"bytes": 80}, 2, "waits for 16 more bytes"),
        ({"parity": 0}, 2, "nothing has arrived at the mbarrier at byte 8"),
        ({"consume": 1}, 1, "has not waited for phase 0, which is complete"),
        ({"signal": 24}, 0, "no warp ever arrives at the mbarrier at byte 16"),
        ({"signal": 24, "after": STORE}, 0, "no warp ever arrives at the mbarrier at byte 16"),
        ({"signal": 24, "after": LOAD}, 0, "nothing has arrived at the mbarrier at byte 16"),
    ],
)
def test_the_wait_to_look_at_first_is_the_cause_and_not_a_victim(
    changes: dict[str, int | str], warp: int, words: str
) -> None:
    fault = stuck(**changes)
    assert fault.where is not None
    assert fault.where.warp == warp
    assert words in fault.message


def test_a_barrier_is_named_by_where_it_was_initialised() -> None:
    assert "initialised at PTX line" in stuck(full=2).message


def test_ctas_that_are_stuck_alike_are_told_of_once() -> None:
    notes = stuck(grid=3, full=2).notes
    assert sum(note.startswith("CTA") for note in notes) == 3
    assert "the same in CTA (1, 0, 0), (2, 0, 0)" in notes


ALL_WAIT = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared.b64 [smem], 1; READY: bar.sync 0;
@!%p1 mbarrier.arrive.shared.b64 _, [smem];
FIRST: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra FIRST;
{meet}
@!%p1 mbarrier.arrive.shared.b64 _, [smem];
SECOND: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 1; @!%p2 bra SECOND;
"""


def test_a_warp_that_is_late_by_two_phases_is_told_so() -> None:
    run_ptx(ALL_WAIT.format(meet="bar.sync 0;"), block=(64, 1, 1), shared=64)
    with pytest.raises(Fault, match=r"warp 1 comes to the mbarrier .* when warp 0 has passed 2 of") as caught:
        run_ptx(ALL_WAIT.format(meet=""), block=(64, 1, 1), shared=64)
    assert "bar.sync" in caught.value.hint


@pytest.mark.parametrize(
    "arrive", ["mbarrier.arrive.shared.b64 _,", "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"]
)
def test_a_warp_that_skips_the_phase_of_its_own_arrive_is_told_so(arrive: str) -> None:
    skips = ALL_WAIT.replace("[smem], 0;", "[smem], 1;").replace("mbarrier.arrive.shared.b64 _,", arrive)
    with pytest.raises(Fault, match=r"warp 0 waits for phase 1 .* and has not waited for phase 0") as caught:
        run_ptx(skips.format(meet="bar.sync 0;"), block=(64, 1, 1), shared=64)
    assert "starts with parity 0" in caught.value.hint


FILL = """
@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [smem], 64;
@!%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem], 64;
"""
FILLED = """
mov.u32 %r1, %tid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared.b64 [smem], 1; READY: bar.sync 0;
{fill}
bar.sync 0;
setp.lt.u32 %p3, %r1, 32; @%p3 bra END;
READ: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra READ;
END: bar.sync 0;
"""


def test_a_stage_that_is_filled_again_before_it_is_read_is_named() -> None:
    run_ptx(FILLED.format(fill=FILL), block=(64, 1, 1), shared=64)
    with pytest.raises(Fault, match=r"2 phases of .* before warp 1 first waits: warp 0 .* again") as caught:
        run_ptx(FILLED.format(fill=2 * FILL), block=(64, 1, 1), shared=64)
    assert caught.value.where is not None
    assert caught.value.where.warp == 1
    assert "free it" in caught.value.hint


def test_an_mbarrier_that_counts_fewer_arrivals_than_come_is_named() -> None:
    arrive = "@!%p1 mbarrier.arrive.shared.b64 _, [smem];\n"
    run_ptx(FILLED.format(fill=arrive), block=(64, 1, 1), shared=64)
    words = r"^2 phases of the mbarrier at byte 0 .* before warp 1 first waits, the last one by warp 0 .*arrive"
    with pytest.raises(Fault, match=words) as caught:
        run_ptx(FILLED.format(fill=2 * arrive), block=(64, 1, 1), shared=64)
    assert "the count of its init" in caught.value.hint


# Warp 2 fills two rounds, warp 1 empties them and then signals the epilogue, warp 0; nothing signals an empty stage.
ONE_STATEMENT = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.b32 %r3, 0;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
.loc 1 10 1
mbarrier.init.shared.b64 [smem], 1;
.loc 1 {line} 1
mbarrier.init.shared.b64 [smem+8], 1;
.loc 1 12 1
mbarrier.init.shared.b64 [smem+16], 1;
READY: bar.sync 0;
setp.eq.s32 %p1, %r2, 0; @%p1 bra EPILOGUE;
setp.eq.s32 %p1, %r2, 1; @%p1 bra CONSUMER;
PRODUCER: xor.b32 %r4, %r3, 1;
EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [smem+8], %r4; @!%p2 bra EMPTY;
elect.sync %r9|%p3, -1;
@%p3 mbarrier.arrive.expect_tx.shared.b64 _, [smem], 64;
@%p3 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem], 64;
add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 2; @%p4 bra PRODUCER; bra END;
CONSUMER: mbarrier.try_wait.parity.shared.b64 %p2, [smem], %r3; @!%p2 bra CONSUMER;
add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 2; @%p4 bra CONSUMER;
elect.sync %r9|%p3, -1; @%p3 mbarrier.arrive.shared.b64 _, [smem+16]; bra END;
EPILOGUE: mbarrier.try_wait.parity.shared.b64 %p2, [smem+16], 0; @!%p2 bra EPILOGUE;
END: bar.sync 0;
"""


@pytest.mark.parametrize("line", [10, 11])
def test_full_and_empty_stages_may_be_initialised_by_one_statement(line: int) -> None:
    """As CuTe DSL's pipelines do; those of the full stages have arrivals, those of the empty ones lack them."""
    with pytest.raises(Fault) as caught:
        run_ptx(ONE_STATEMENT.format(line=line), block=(96, 1, 1), shared=64, globals_='.file 1 "/a/k.py"\n')
    assert caught.value.where is not None
    assert caught.value.where.warp == 2
    assert "no warp ever arrives at the mbarrier at byte 8" in caught.value.message


# Warp 0 fills two stages and warp 1 frees them; mbarriers of full stages at byte 0, of empty ones at byte 16.
STAGES = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.b32 %r3, 0;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
.loc 1 10 1
mbarrier.init.shared.b64 [smem], 1; mbarrier.init.shared.b64 [smem+8], 1;
.loc 1 11 1
mbarrier.init.shared.b64 [smem+16], 1; mbarrier.init.shared.b64 [smem+24], 1;
READY: bar.sync 0; elect.sync %r9|%p3, -1;
NEXT: and.b32 %r4, %r3, 1; shl.b32 %r5, %r4, 3; mov.u32 %r6, smem; add.u32 %r5, %r5, %r6;
shr.u32 %r7, %r3, {shift}; and.b32 %r7, %r7, 1; xor.b32 %r8, %r7, 1;
setp.eq.s32 %p1, %r2, 1; @%p1 bra FULL;
EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [%r5+16], %r8; @!%p2 bra EMPTY;
bar.warp.sync -1; @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 64;
@%p3 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r5], 64;
bra DONE;
FULL: shr.u32 %r7, %r3, 1; and.b32 %r7, %r7, 1;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], %r7; @!%p2 bra AGAIN;
@%p3 mbarrier.arrive.shared.b64 _, [%r5+16];
DONE: add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 6; @%p4 bra NEXT;
"""


def test_a_parity_that_flips_with_each_stage_is_the_cause_where_each_warp_waits_for_the_other() -> None:
    files = '.file 1 "/a/k.py"\n'
    run_ptx(STAGES.format(shift=1), block=(64, 1, 1), shared=64, globals_=files)
    with pytest.raises(Fault) as caught:
        run_ptx(STAGES.format(shift=0), block=(64, 1, 1), shared=64, globals_=files)
    assert caught.value.where is not None
    assert caught.value.where.warp == 0
    assert "nothing has arrived at the mbarrier at byte 24" in caught.value.message
    assert "before it fills the stage for the first time" in caught.value.message


COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
# One loop initialises all mbarriers. Warp 2 fills a stage {fills} times, warp 1 reads it twice and then signals warp 0.
ONE_LOOP = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.b32 %r3, 0;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
.loc 1 10 1
mbarrier.init.shared.b64 [smem], 1;
mbarrier.init.shared.b64 [smem+8], 1;
mbarrier.init.shared.b64 [smem+16], 1;
READY: bar.sync 0;
setp.eq.s32 %p1, %r2, 0; @%p1 bra EPILOGUE;
setp.eq.s32 %p1, %r2, 1; @%p1 bra CONSUMER;
PRODUCER: xor.b32 %r4, %r3, 1;
.loc 1 20 1
EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [smem+8], %r4; @!%p2 bra EMPTY;
elect.sync %r9|%p3, -1;
@%p3 mbarrier.arrive.expect_tx.shared.b64 _, [smem], 64;
@%p3 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [smem], 64;
add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, {fills}; @%p4 bra PRODUCER; exit;
.loc 1 30 1
CONSUMER: mbarrier.try_wait.parity.shared.b64 %p2, [smem], %r3; @!%p2 bra CONSUMER;
elect.sync %r9|%p3, -1; @%p3 {commit} [smem+8];
add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 2; @%p4 bra CONSUMER;
@%p3 {commit} [smem+16]; exit;
.loc 1 40 1
EPILOGUE: mbarrier.try_wait.parity.shared.b64 %p2, [smem+16], 0; @!%p2 bra EPILOGUE;
"""


def test_mbarriers_for_which_other_lines_wait_are_no_stages_of_the_ring() -> None:
    """Nothing has arrived at the last one, but who signals it waits for a stage that another warp no longer fills."""
    where = {"block": (96, 1, 1), "shared": 64, "globals_": '.file 1 "/a/k.py"\n'}
    run_ptx(ONE_LOOP.format(fills=2, commit=COMMIT), **where)
    with pytest.raises(Fault) as caught:
        run_ptx(ONE_LOOP.format(fills=1, commit=COMMIT), **where)
    assert caught.value.where is not None
    assert caught.value.where.warp == 1
    message = caught.value.message
    assert message.startswith("warp 2 ")
    assert "has left its loop and does not arrive in phase 1 of the mbarrier at byte 0 of shared memory" in message


OTHER_RING = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
.loc 1 10 1
mbarrier.init.shared.b64 [smem], 1;
mbarrier.init.shared.b64 [smem+8], {count};
READY: bar.sync 0;
setp.eq.s32 %p1, %r2, 0; @%p1 bra WAITS;
elect.sync %r9|%p3, -1; @%p3 mbarrier.arrive.shared.b64 _, [smem+8];
exit;
WAITS: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra WAITS;
"""


@pytest.mark.parametrize(("count", "words"), [(1, "has left its loop"), (2, "no warp ever arrives")])
def test_stages_of_one_ring_count_alike(count: int, words: str) -> None:
    """A helper may make all pipelines of a kernel: who has arrived at those of another one says nothing."""
    with pytest.raises(Fault) as caught:
        run_ptx(OTHER_RING.format(count=count), block=(64, 1, 1), shared=64, globals_='.file 1 "/a/k.py"\n')
    assert words in caught.value.message


NAMED = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared.b64 [smem], 2; READY: bar.sync 0;
setp.eq.s32 %p1, %r2, 0; @%p1 bra WAITS;
setp.eq.s32 %p1, %r2, 1; @%p1 bra {last};
MEET: bar.sync 1, {count};
mbarrier.arrive.shared.b64 _, [smem];
LAST: exit;
WAITS: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra WAITS;
{after}
"""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 96}, "bar.sync waits for barrier 1, 64 of 96 threads arrived"),
        ({"last": "LAST"}, "warps 1 have ended without arriving, and no other warp of the CTA can reach the barrier"),
        # Warp 0 may still come, once the mbarrier for which it waits lets it go on.
        ({"count": 96, "after": "bar.sync 1, 96;"}, "no warp ever arrives at the mbarrier at byte 0"),
        ({"count": 96, "after": "mov.u32 %r3, 1; bar.sync %r3, 96;"}, "no warp ever arrives at the mbarrier at byte 0"),
        ({"count": 96, "after": "bar.sync 2, 96;"}, "bar.sync waits for barrier 1, 64 of 96 threads arrived"),
    ],
)
def test_a_named_barrier_that_nobody_is_left_to_complete_is_the_cause(
    changes: dict[str, int | str], words: str
) -> None:
    right = {"count": 64, "last": "MEET", "after": ""}
    run_ptx(NAMED.format(**right).replace("[smem], 2", "[smem], 64"), block=(96, 1, 1), shared=64)
    with pytest.raises(Fault) as caught:
        run_ptx(NAMED.format(**right | changes).replace("[smem], 2", "[smem], 64"), block=(96, 1, 1), shared=64)
    assert words in caught.value.message


# Warp 0 waits for two stages of a ring, at which warps 1 and 2 arrive; between them, warp 2 waits for another mbarrier.
TWO_RINGS = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; elect.sync %r9|%p3, -1;
setp.ne.s32 %p1, %r1, 0; @%p1 bra READY;
.loc 1 10 1
mbarrier.init.shared.b64 [smem], {count}; mbarrier.init.shared.b64 [smem+8], {count};
.loc 1 11 1
mbarrier.init.shared.b64 [smem+16], 1;
READY: bar.sync 0;
setp.eq.s32 %p1, %r2, 1; @%p1 bra RELEASES; setp.eq.s32 %p1, %r2, 2; @%p1 bra READS;
FIRST: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra FIRST;
SECOND: mbarrier.try_wait.parity.shared.b64 %p2, [smem+8], 0; @!%p2 bra SECOND; exit;
RELEASES: @%p3 mbarrier.arrive.shared.b64 _, [smem];
{release}
@%p3 mbarrier.arrive.shared.b64 _, [smem+8]; exit;
READS: @%p3 mbarrier.arrive.shared.b64 _, [smem];
OTHER: mbarrier.try_wait.parity.shared.b64 %p2, [smem+16], 0; @!%p2 bra OTHER; {leave}
@%p3 mbarrier.arrive.shared.b64 _, [smem+8];
"""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"release": ""}, "no warp ever arrives at the mbarrier at byte 16"),
        (
            {"count": 3},
            "the mbarrier at byte 0 of shared memory (address 0x400, initialised at k.py:10) never completes",
        ),
        (
            {"leave": "exit;"},
            "warp 2 (mbarrier.arrive.shared.b64, k.py:11) does not arrive in phase 0 of the mbarrier ",
        ),
    ],
)
def test_a_stage_that_lacks_a_waiting_warp_of_its_ring_is_no_cause(changes: dict[str, int | str], words: str) -> None:
    right = {"count": 2, "release": "@%p3 mbarrier.arrive.shared.b64 _, [smem+16];", "leave": ""}
    files = '.file 1 "/a/k.py"\n'
    run_ptx(TWO_RINGS.format(**right), block=(96, 1, 1), shared=64, globals_=files)
    with pytest.raises(Fault) as caught:
        run_ptx(TWO_RINGS.format(**right | changes), block=(96, 1, 1), shared=64, globals_=files)
    assert words in caught.value.message
