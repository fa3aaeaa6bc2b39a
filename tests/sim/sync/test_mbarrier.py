from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Lazy
from tests.sim.sync.harness import clean, faults, findings, results, run

INIT = "@%p0 mbarrier.init.shared.b64 [%r99], {count};\nbar.sync 0;\n"
WAIT = """
WAIT{n}: mbarrier.try_wait.parity.shared.b64 %p9, [%r99], {parity}, 10000000;
@!%p9 bra WAIT{n};
"""


def init(count: int = 1) -> str:
    return INIT.format(count=count)


def wait(parity: int = 0, n: int = 0) -> str:
    return WAIT.format(parity=parity, n=n)


@pytest.mark.parametrize(
    "spelling",
    [
        "mbarrier.try_wait.parity.shared.b64 %p9, [%r99], 0, 10000000;",
        "mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r99], %r1;",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p9, [%r99], %r1;",
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p9, [%r99], %r1, 20;",
        "mbarrier.test_wait.parity.shared.b64 %p9, [%r99], %r1;",
        "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r99], %r1;",
    ],
)
@pytest.mark.parametrize(
    "arrive",
    [
        "mbarrier.arrive.shared.b64 %rd1, [%r99];",
        "mbarrier.arrive.shared.b64 %rd1, [%r99], 1;",
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r99], %r2;",
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r99];",
        "mbarrier.arrive.shared::cluster.b64 _, [%r99], 1;",
    ],
)
def test_a_wait_ends_with_the_last_arrival(spelling, arrive):
    body = init(64) + f"mov.u32 %r1, 0; mov.u32 %r2, 1;\n{arrive}\nW: {spelling}\n@!%p9 bra W;"
    assert clean(body, threads=64).grid.counters["mbarrier.phases"] == 1


def test_a_phase_needs_its_arrivals_and_its_bytes_in_any_order():
    for first, second in (("complete", "arrive"), ("arrive", "complete")):
        steps = {
            "arrive": "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r99], 48;",
            "complete": "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], 48;",
        }
        (done,) = results(init() + steps[first] + steps[second] + wait() + "mov.u32 %r5, 7;", "%r5", threads=64)
        assert set(done) == {7}


def test_parity_is_true_of_the_phase_before_and_not_of_the_present_one():
    body = (
        init()
        + """
mbarrier.try_wait.parity.shared.b64 %p1, [%r99], 1;
mbarrier.try_wait.parity.shared.b64 %p2, [%r99], 0;
@%p0 mbarrier.arrive.shared.b64 %rd1, [%r99];
bar.warp.sync -1;
mbarrier.test_wait.parity.shared.b64 %p3, [%r99], 0;
mbarrier.test_wait.parity.shared.b64 %p4, [%r99], 1;
selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 1, 0, %p3; selp.u32 %r4, 1, 0, %p4;
"""
    )
    found = [set(column) for column in results(body, "%r1", "%r2", "%r3", "%r4")]
    assert found == [{1}, {0}, {1}, {0}]


def test_lanes_that_wait_for_different_barriers_are_answered_one_by_one():
    body = """
setp.lt.u32 %p1, %r0, 2;
shl.b32 %r1, %r0, 3; add.u32 %r1, %r1, %r99;
@%p1 mbarrier.init.shared.b64 [%r1], 1;
bar.warp.sync -1;
@%p0 mbarrier.arrive.shared.b64 %rd1, [%r1];
and.b32 %r2, %r0, 1; shl.b32 %r2, %r2, 3; add.u32 %r2, %r2, %r99;
mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
selp.u32 %r3, 1, 0, %p2;
"""
    (answer,) = results(body, "%r3")
    assert list(answer) == [1, 0] * 16


def test_lanes_that_wait_for_two_barriers_are_woken_by_either():
    body = """
setp.lt.u32 %p1, %r0, 2;
shl.b32 %r1, %r0, 3; add.u32 %r1, %r1, %r99;
@%p1 mbarrier.init.shared.b64 [%r1], 1;
bar.sync 0;
setp.lt.u32 %p2, %r0, 32;
@!%p2 bra ARRIVE;
and.b32 %r2, %r0, 1; shl.b32 %r2, %r2, 3; add.u32 %r2, %r2, %r99;
W: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;
@!%p3 bra W;
bra END;
ARRIVE:
setp.eq.u32 %p4, %r0, 32;
@%p4 mbarrier.arrive.shared.b64 _, [%r99+8];
@%p4 mbarrier.arrive.shared.b64 _, [%r99];
END:
"""
    assert clean(body, threads=64).grid.counters["mbarrier.phases"] == 2


def test_states_name_their_phase():
    body = (
        init(2)
        + """
mov.u64 %rd1, 0; mov.u64 %rd2, 0;
@%p0 mbarrier.arrive.shared.b64 %rd1, [%r99];
@%p0 mbarrier.test_wait.shared.b64 %p1, [%r99], %rd1;
@%p0 mbarrier.arrive.shared.b64 %rd2, [%r99];
@%p0 mbarrier.try_wait.shared::cta.b64 %p2, [%r99], %rd1;
@%p0 mbarrier.try_wait.shared::cta.b64 %p3, [%r99], %rd2, 100;
selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 1, 0, %p3;
"""
    )
    assert [int(column[0]) for column in results(body, "%r1", "%r2", "%r3")] == [0, 1, 1]


def test_states_of_other_barriers_and_old_phases_are_refused():
    two = "@%p0 mbarrier.init.shared.b64 [%r99+8], 1;\n" + init() + "mov.u64 %rd1, 0;\n"
    arrive = "@%p0 mbarrier.arrive.shared.b64 {state}, [%r99+{at}];\n"
    test = "@%p0 mbarrier.test_wait.shared.b64 %p1, [%r99], %rd1;"
    clean(two + arrive.format(state="%rd1", at=0) + test)
    faults("mbarrier", "is not a state of", two + arrive.format(state="%rd1", at=8) + test)
    old = arrive.format(state="%rd1", at=0) + arrive.format(state="_", at=0)
    faults("mbarrier", "state is of phase 0 .* in phase 2", two + old + test)


def test_no_complete_gives_the_pending_count_before_it():
    body = (
        init(10)
        + """
@%p0 mbarrier.arrive.noComplete.shared.b64 %rd1, [%r99], 3;
@%p0 mbarrier.arrive_drop.noComplete.release.cta.shared.b64 %rd2, [%r99], 2;
@%p0 mbarrier.pending_count.b64 %r1, %rd1;
@%p0 mbarrier.pending_count.b64 %r2, %rd2;
"""
    )
    first, second = results(body, "%r1", "%r2")
    assert (first[0], second[0]) == (10, 7)
    faults("mbarrier", "completes the phase", init(3) + "@%p0 mbarrier.arrive.noComplete.shared.b64 %rd1, [%r99], 3;")
    plain = "@%p0 mbarrier.arrive.shared.b64 %rd1, [%r99];\n@%p0 mbarrier.pending_count.b64 %r1, %rd1;"
    faults("mbarrier", "not the state of an arrive.noComplete", init(3) + plain)


def test_arrive_drop_lowers_what_the_next_phase_expects():
    body = (
        init(2)
        + """
@%p0 mbarrier.arrive_drop.shared.b64 %rd1, [%r99];
@%p0 mbarrier.arrive.shared.b64 %rd1, [%r99];
@%p0 mbarrier.arrive.shared.b64 %rd1, [%r99];
"""
    )
    assert clean(body).grid.counters["mbarrier.phases"] == 2
    assert clean(body.replace("arrive_drop", "arrive")).grid.counters["mbarrier.phases"] == 1


def test_remote_arrivals_follow_the_rank():
    body = """
mov.u32 %r1, %cluster_ctarank;
@%p0 mbarrier.init.shared.b64 [%r99], 2;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed; barrier.cluster.wait;
xor.b32 %r2, %r1, 1;
mapa.shared::cluster.u32 %r3, %r99, %r2;
@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
@%p0 mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r3], 16;
@%p0 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r3], 16;
@%p0 mbarrier.arrive.shared::cta.b64 _, [%r99];
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r99], 0;
@!%p9 bra W;
barrier.cluster.arrive; barrier.cluster.wait;
"""
    two = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
    assert clean(body, **two).grid.counters["mbarrier.phases"] == 2
    own = body.replace(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3]", "mbarrier.arrive.shared::cta.b64 _, [%r3]"
    )
    faults("out-of-bounds", "is in CTA", own, **two)


def test_generic_addresses_must_be_shared_memory():
    body = """
cvta.shared.u64 %rd1, {source};
@%p0 mbarrier.init.b64 [%rd1], 1;
@%p0 mbarrier.arrive.b64 _, [%rd1];
"""
    wide = "cvt.u64.u32 %rd2, %r99;\n"
    assert clean(wide + body.format(source="%rd2")).grid.counters["mbarrier.phases"] == 1
    faults("out-of-bounds", "not in shared memory", wide + "@%p0 mbarrier.init.b64 [%rd2], 1;")


RULES = {
    "count of 0": ("mbarrier", "arrival count 0", "@%p0 mbarrier.init.shared.b64 [%r99], 0;"),
    "count of 2^20": ("mbarrier", "arrival count 1048576", "@%p0 mbarrier.init.shared.b64 [%r99], 1048576;"),
    "misaligned": ("misaligned", "not a multiple of 8", "@%p0 mbarrier.init.shared.b64 [%r99+4], 1;"),
    "outside": ("out-of-bounds", "launched with 1024", "@%p0 mbarrier.init.shared.b64 [%r99+1024], 1;"),
    "lanes with different counts": (
        "multi-lane",
        "with counts 1 and 2",
        "add.u32 %r1, %r0, 1;\nmbarrier.init.shared.b64 [%r99], %r1;",
    ),
    "two warps": (
        "mbarrier",
        "a live mbarrier",
        "mov.u32 %r1, %tid.x;\nshr.u32 %r1, %r1, 5;\nadd.u32 %r1, %r1, 1;\nmbarrier.init.shared.b64 [%r99], %r1;",
    ),
    "twice": ("mbarrier", "a live mbarrier", init() + "@%p0 mbarrier.init.shared.b64 [%r99], 2;"),
    "after use": (
        "mbarrier",
        "a live mbarrier",
        init(2) + "@%p0 mbarrier.arrive.shared.b64 _, [%r99];\n@%p0 mbarrier.init.shared.b64 [%r99], 2;",
    ),
    "between arrivals": (
        "mbarrier",
        "a live mbarrier",
        init(2)
        + "@%p0 mbarrier.arrive.shared.b64 _, [%r99], 2;\n@%p0 mbarrier.arrive.shared.b64 _, [%r99];\n"
        + "@%p0 mbarrier.init.shared.b64 [%r99], 2;",
    ),
    "never": (
        "uninitialised",
        "no mbarrier was initialised at byte 8 .* nearest are at bytes 0",
        init() + "@%p0 mbarrier.arrive.shared.b64 _, [%r99+8];",
    ),
    "invalidated": (
        "mbarrier",
        "was invalidated",
        init() + "@%p0 mbarrier.inval.shared.b64 [%r99];\n@%p0 mbarrier.arrive.shared.b64 _, [%r99];",
    ),
    "too many": (
        "mbarrier",
        "2 arrivals .* only 1 are pending",
        init() + "@%p0 mbarrier.arrive.shared.b64 _, [%r99], 2;",
    ),
    "while bytes are missing": (
        "mbarrier",
        "only 0 are pending",
        init() + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99], 16;\n@%p0 mbarrier.arrive.shared.b64 _, [%r99];",
    ),
    "every lane": ("mbarrier", "32 lanes .* completed 2 phases", init() + "mbarrier.arrive.shared.b64 _, [%r99];"),
    "arrive of 0": ("mbarrier", "arrival count 0", init() + "@%p0 mbarrier.arrive.shared.b64 _, [%r99], 0;"),
    "too many bytes": (
        "mbarrier",
        "1048576 bytes",
        init() + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99], 1048576;",
    ),
    "overflow": (
        "mbarrier",
        "tx-count .* would be 2097150, above",
        init() + "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r99], 1048575;\n" * 2,
    ),
    "underflow": (
        "mbarrier",
        "tx-count .* would be -2097150, below",
        init() + "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], 1048575;\n" * 2,
    ),
    "a store": ("mbarrier", "overlap the mbarrier at byte 0", init() + "@%p0 st.shared.b32 [%r99+4], %r0;"),
    "dropping more": ("mbarrier", "expects 1 arrivals", init() + "@%p0 mbarrier.arrive_drop.shared.b64 _, [%r99], 2;"),
}
LEGAL = {
    "count of 0": "@%p0 mbarrier.init.shared.b64 [%r99], 1;",
    "count of 2^20": "@%p0 mbarrier.init.shared.b64 [%r99], 1048575;",
    "misaligned": "@%p0 mbarrier.init.shared.b64 [%r99+8], 1;",
    "outside": "@%p0 mbarrier.init.shared.b64 [%r99+1016], 1;",
    "lanes with different counts": "mbarrier.init.shared.b64 [%r99], 1;",
    "all lanes": "mad.lo.u32 %r1, %r0, 8, %r99;\nmbarrier.init.shared.b64 [%r1], 1;",
    "twice": init() + "@%p0 mbarrier.inval.shared.b64 [%r99];\n@%p0 mbarrier.init.shared.b64 [%r99], 1;",
    "again, untouched": init() + "@%p0 mbarrier.init.shared.b64 [%r99], 1;",
    "too many": init(2) + "@%p0 mbarrier.arrive.shared.b64 _, [%r99], 2;",
    "every lane": init(32) + "mbarrier.arrive.shared.b64 _, [%r99];",
    "a store": init() + "@%p0 st.shared.b32 [%r99+8], %r0;",
    "dropping more": init(2) + "@%p0 mbarrier.arrive_drop.shared.b64 _, [%r99], 2;",
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule):
    kind, words, body = RULES[rule]
    faults(kind, words, body, threads=64 if rule == "two warps" else 32)


@pytest.mark.parametrize("wait", ["try_wait", "test_wait"])
@pytest.mark.parametrize(("parity", "taken", "complete"), [("2", 0, 0), ("-1", 1, 1), ("%r1", 1, 1), ("1", None, 1)])
def test_the_low_bit_of_a_parity_counts_with_a_warning(wait: str, parity: str, taken: int | None, complete: int):
    body = (
        init() + f"mov.b32 %r1, 3; @%p0 mov.b32 %r1, 5; mbarrier.{wait}.parity.shared.b64 %p1, [%r99], {parity};"
        "selp.b32 %r2, 1, 0, %p1;"
    )
    (values,) = results(body, "%r2")
    assert set(values) == {complete}
    found = findings(body)
    assert [kind for kind, _ in found] == ([] if taken is None else ["parity"])
    assert all(f"taken for {taken}, its low bit" in message for _, message in found)


def test_an_idle_mbarrier_may_be_initialised_anew_with_a_warning():
    body = (
        init()
        + """
@%p0 mbarrier.arrive.shared.b64 _, [%r99];
bar.sync 0;
@%p0 mbarrier.init.shared.b64 [%r99], 2;
@%p0 mbarrier.arrive.shared.b64 _, [%r99], 2;
WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r99], 0;
@!%p1 bra WAIT;
"""
    )
    ((kind, message),) = findings(body)
    assert kind == "mbarrier-reuse"
    assert "idle and never invalidated" in message
    assert "initialised at" in message


def test_bytes_of_an_mbarrier_that_is_initialised_anew_need_a_wait():
    copied = """
@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r99], 16;
@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], 16;
bar.sync 0;
"""
    anew = "@%p0 mbarrier.init.shared.b64 [%r99], 1;"
    (kind, message), (reused, _) = findings(init() + copied + anew)
    assert (kind, reused) == ("in-flight", "mbarrier-reuse")
    assert re.match(r"warp 0 \(mbarrier\.init.*\): nothing waited for the bytes that completed phase 0 of the", message)
    assert "CTA ended" not in message
    assert [kind for kind, _ in findings(init() + copied + wait() + anew)] == ["mbarrier-reuse"]


@pytest.mark.parametrize("rule", LEGAL)
def test_what_the_rules_allow(rule):
    clean(LEGAL[rule])


def test_bytes_that_never_arrive_are_a_deadlock_that_says_so():
    body = (
        init()
        + """
@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r99], 20480;
@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], {size};
"""
        + wait()
    )
    clean(body.format(size=20480), threads=64)
    fault = faults("deadlock", "no warp can continue", body.format(size=16384), threads=64)
    (note,) = fault.notes
    assert "warps 0-1 at" in note
    assert "waits for 4096 more bytes: expect_tx announced 20480, 16384 arrived" in note
    assert "warp 0 (mbarrier.arrive.expect_tx.shared.b64" in note


INVALIDATE = "@%p0 mbarrier.inval.shared::cta.b64 [%r99];\n"


@pytest.mark.parametrize(("end", "event"), [("", "the CTA ended, and"), (INVALIDATE, r"warp 0 \(mbarrier\.inval.*\):")])
def test_bytes_outstanding_at_the_end_are_found(end, event):
    announced = init() + "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r99], 64;\n"
    arrived = "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], {};\n"
    body = announced + arrived.format(32) + end
    assert [kind for kind, _ in findings(body)] == ["mbarrier"]
    message = findings(body)[0][1]
    assert re.match(f"{event} the mbarrier at byte 0 .* is unbalanced: .* 32 more bytes", message)
    assert "(mbarrier.expect_tx.relaxed.cta.shared::cta.b64) announced the last bytes" in message
    clean(announced + arrived.format(64) + end)


def test_bytes_that_come_behind_a_phase_without_them_are_found_at_the_invalidation():
    announced = init() + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r99], 64;\n"
    arrived = "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], 64;\n"
    more = arrived.replace("64;", "16;")
    ((kind, message),) = findings(announced + arrived + more + wait() + INVALIDATE)
    assert kind == "mbarrier"
    assert "16 bytes too many: 16 arrived, expect_tx announced 0" in message
    clean(announced + arrived + wait() + INVALIDATE)


def test_bytes_of_an_mbarrier_that_is_invalidated_need_a_wait():
    copied = (
        init()
        + """
@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r99], 16;
@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], 16;
bar.sync 0;
"""
    )
    ((kind, message),) = findings(copied + INVALIDATE)
    assert kind == "in-flight"
    assert re.match(r"warp 0 \(mbarrier\.inval.*\): nothing waited for the bytes that completed phase 0", message)
    clean(copied + wait() + INVALIDATE)


@pytest.mark.parametrize("end", ["", INVALIDATE])
def test_bytes_announced_for_a_copy_that_is_never_begun_are_left_alone(end):
    clean(init() + "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r99], 64;\n" + end)


def test_spinning_without_a_wait_lets_the_others_run():
    body = (
        init()
        + """
setp.lt.u32 %p1, %r0, 32;
@!%p1 bra ARRIVE;
W: mbarrier.test_wait.parity.shared.b64 %p2, [%r99], 0;
@!%p2 bra W;
bra END;
ARRIVE: setp.eq.u32 %p3, %r0, 32;
@%p3 mbarrier.arrive.shared.b64 _, [%r99];
END:
"""
    )
    ran = clean(body, threads=64, asynchronous=Lazy())
    assert ran.grid.counters["instructions"] < 60


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=6), expected=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_phases_are_the_arrivals_divided_by_the_count(counts, expected):
    arrivals = "\n".join(f"@%p0 mbarrier.arrive.shared.b64 _, [%r99], {count};" for count in counts)
    pending, phases = expected, 0
    fits = True
    for count in counts:
        fits &= count <= pending
        pending -= count
        if pending == 0:
            pending, phases = expected, phases + 1
    if fits:
        assert run(init(expected) + arrivals).grid.counters["mbarrier.phases"] == phases
    else:
        with pytest.raises(Fault, match="are pending"):
            run(init(expected) + arrivals)
