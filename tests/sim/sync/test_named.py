from __future__ import annotations

import numpy as np
import pytest

from tests.sim.sync.harness import clean, faults, results, run

SYNCS = [
    "bar.sync 1;",
    "bar.cta.sync 1;",
    "bar.sync 1, 96;",
    "bar.sync %r1, %r2;",
    "barrier.sync 1;",
    "barrier.cta.sync.aligned 1, 96;",
    "barrier.cta.sync %r1, 96;",
    "barrier.sync.aligned %r1;",
]


@pytest.mark.parametrize("first", SYNCS)
@pytest.mark.parametrize("second", SYNCS[:1] + SYNCS[3:4] + SYNCS[6:7])
def test_every_spelling_meets_every_other(first, second):
    body = f"""
mov.u32 %r1, 1; mov.u32 %r2, 96;
mul.wide.u32 %rd1, %r0, 4; cvt.u32.u64 %r3, %rd1; add.u32 %r4, %r99, %r3;
st.shared.b32 [%r4], %r0;
setp.lt.u32 %p1, %r0, 32;
@%p1 bra A;
{second}
bra B;
A: {first}
B: xor.b32 %r5, %r3, 256; setp.lt.u32 %p2, %r5, 384; @!%p2 mov.u32 %r5, 0; add.u32 %r5, %r5, %r99;
ld.shared.b32 %r6, [%r5];
"""
    (got,) = results(body, "%r6", threads=96)
    other = (np.arange(96) * 4) ^ 256
    assert (got == np.where(other < 384, other // 4, 0)).all()


def test_producer_and_consumer():
    body = """
setp.lt.u32 %p1, %r0, 32;
mov.u32 %r5, 0;
LOOP:
@%p1 bra PRODUCE;
bar.sync 1, 64;
ld.shared.b32 %r6, [%r99];
bar.arrive 2, 64;
bra NEXT;
PRODUCE:
@%p0 st.shared.b32 [%r99], %r5;
bar.arrive 1, 64;
bar.sync 2, 64;
NEXT:
add.u32 %r5, %r5, 1;
setp.lt.u32 %p2, %r5, 5;
@%p2 bra LOOP;
"""
    (got,) = results(body, "%r6", threads=64)
    assert set(got[32:]) == {4}
    ran = clean(body, threads=64)
    assert ran.grid.counters["barrier.cta.completions"] == 10
    assert ran.grid.counters["barrier.cta.arrivals"] == 20


@pytest.mark.parametrize("root", ["bar", "barrier"])
def test_reductions(root):
    aligned = "" if root == "bar" else ".aligned"
    body = f"""
setp.lt.u32 %p1, %r0, 40; setp.lt.u32 %p2, %r0, 96;
{root}.red.popc{aligned}.u32 %r1, 0, %p1;
{root}.red.popc{aligned}.u32 %r2, 1, 96, !%p1;
{root}.red.and{aligned}.pred %p3, 0, %p1;
{root}.red.and{aligned}.pred %p4, 0, %p2;
{root}.red.or{aligned}.pred %p5, 2, %p1;
{root}.red.or{aligned}.pred %p6, 2, !%p2;
selp.u32 %r3, 1, 0, %p3; selp.u32 %r4, 1, 0, %p4; selp.u32 %r5, 1, 0, %p5; selp.u32 %r6, 1, 0, %p6;
"""
    found = results(body, "%r1", "%r2", "%r3", "%r4", "%r5", "%r6", threads=96)
    assert [set(column) for column in found] == [{40}, {56}, {0}, {1}, {1}, {0}]


def test_lanes_come_to_an_unaligned_barrier_from_different_places():
    body = """
and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0;
@%p1 bra EVEN;
{odd}
bra END;
EVEN: {even}
END:
"""
    ran = clean(body.format(odd="barrier.sync 0, 64;", even="barrier.sync 0, 64;"), threads=64)
    assert ran.grid.counters["instructions.warp0"] == ran.grid.counters["instructions.warp1"]
    apart = body.format(odd="bar.sync 0, 64;", even="bar.sync 0, 64;")
    assert faults("divergence", "wait for each other at different instructions", apart, threads=64)


def test_a_barrier_of_the_whole_cta_forgives_warps_that_ended():
    body = "setp.ge.u32 %p1, %r0, 64;\n@%p1 exit;\nbar.sync 0{count};"
    clean(body.format(count=""), threads=96)
    clean("bar.sync 0;\nsetp.ge.u32 %p1, %r0, 64;\n@%p1 exit;\nbar.sync 0;", threads=96)
    clean(body.format(count=", 64"), threads=96)
    clean("setp.ge.u32 %p1, %r0, 40;\n@%p1 exit;\nbar.sync 0;", threads=96)


def test_a_warp_that_ends_late_releases_the_barrier():
    body = """
setp.lt.u32 %p1, %r0, 32;
@%p1 bra WAIT;
@%p0 bra WAIT;
mov.u32 %r1, 0;
L: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 20000; @%p2 bra L;
exit;
WAIT: bar.sync 0;
"""
    assert clean(body, threads=64).grid.counters["barrier.cta.completions"] == 1


def test_too_few_arrivals_are_a_deadlock_that_names_the_warps():
    body = "setp.ge.u32 %p1, %r0, 64;\n@%p1 exit;\nbar.sync 3, 128;"
    fault = faults("deadlock", "no warp can continue", body, threads=128)
    assert any(
        "barrier 3, 64 of 128 threads arrived (warps 0, 1); warps 2, 3 have ended" in note for note in fault.notes
    )


def by_warp(first: str, second: str) -> str:
    """One instruction for warp 0 and another for warp 1."""
    return f"setp.lt.u32 %p1, %r0, 32;\n@%p1 bra A;\n{second}\nbra B;\nA: {first}\nB:"


RULES = {
    "barrier 16": ("barrier", "barrier 16", "bar.sync 16;", "bar.sync 15;"),
    "count of 33": ("barrier", "33 threads", "bar.sync 1, 33;", "bar.sync 1, 64;"),
    "count of 0": ("barrier", "0 threads", "bar.arrive 1, 0;", "bar.arrive 1, 64;"),
    "more than the CTA": ("barrier", "waits for 96 threads, and the CTA has 64", "bar.sync 1, 96;", "bar.sync 1, 64;"),
    "different counts": (
        "barrier",
        "warp 1 gives a count of 32 threads at barrier 1, and warps 0 give 64",
        by_warp("bar.sync 1, 64;", "bar.arrive 1, 32;"),
        by_warp("bar.sync 1, 64;", "bar.arrive 1, 64;"),
    ),
    "a reduction among syncs": (
        "barrier",
        "in use for",
        by_warp("bar.red.popc.u32 %r1, 1, %p0;", "bar.sync 1;"),
        by_warp("bar.red.popc.u32 %r1, 1, %p0;", "bar.red.popc.u32 %r1, 1, %p0;"),
    ),
    "a guard that some lanes fail": (
        "divergence",
        "lanes 0x00000001 execute it",
        "@%p0 bar.sync 0;",
        "setp.lt.u32 %p1, %r0, 64;\n@%p1 bar.sync 0;",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule):
    kind, words, wrong, right = RULES[rule]
    clean(right, threads=64)
    faults(kind, words, wrong, threads=64)


def test_lanes_that_name_different_barriers_are_unsupported():
    faults("unsupported", "different barriers", "barrier.sync %r0, 32;")
    run("mov.u32 %r1, 3; barrier.sync %r1, 32;")
