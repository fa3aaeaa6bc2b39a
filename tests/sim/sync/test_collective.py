from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.sync.harness import clean, faults, results, run
from tests.sim.sync.oracles import shuffled

SEED = "mul.lo.u32 %r1, %r0, 2654435761; xor.b32 %r1, %r1, 0x5bd1e995;\n"
VALUES = [(lane * 2654435761 & 0xFFFF_FFFF) ^ 0x5BD1E995 for lane in range(32)]


@given(
    mode=st.sampled_from(["up", "down", "bfly", "idx"]),
    b=st.integers(0, 40),
    width=st.sampled_from([1, 2, 4, 8, 16, 32]),
)
@settings(max_examples=60, deadline=None)
def test_shuffles_by_constants(mode, b, width):
    c = (32 - width) << 8 | (0 if mode == "up" else 31)
    body = SEED + f"shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1;\nshfl.sync.{mode}.b32 %r4, %r1, {b}, {c}, -1;\n"
    value, flag, alone = results(body + "selp.u32 %r3, 1, 0, %p1;", "%r2", "%r3", "%r4")
    expected = shuffled(mode, VALUES, [b] * 32, [c] * 32)
    assert (list(value), list(flag)) == expected
    assert list(alone) == expected[0]


@given(mode=st.sampled_from(["up", "down", "bfly", "idx"]), factor=st.integers(0, 63), c=st.integers(0, 0x1FFF))
@settings(max_examples=60, deadline=None)
def test_shuffles_by_registers(mode, factor, c):
    body = (
        SEED
        + f"""
mul.lo.u32 %r2, %r0, {factor}; mov.u32 %r3, {c}; mov.u32 %r4, 0xffffffff;
shfl.sync.{mode}.b32 %r5|%p1, %r1, %r2, %r3, %r4;
selp.u32 %r6, 1, 0, %p1;
"""
    )
    b = [lane * factor for lane in range(32)]
    expected, flags = shuffled(mode, VALUES, b, [c] * 32)
    value, flag = results(body, "%r5", "%r6")
    assert (list(value), list(flag)) == (expected, flags)


def test_lanes_that_named_their_own_mask_work_for_themselves():
    body = (
        SEED
        + """
and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0;
selp.b32 %r3, 0x55555555, 0xaaaaaaaa, %p1;
redux.sync.add.u32 %r4, %r0, %r3;
xor.b32 %r5, %r0, 2;
shfl.sync.idx.b32 %r6, %r0, %r5, 31, %r3;
setp.lt.u32 %p2, %r0, 3;
vote.sync.ballot.b32 %r7, %p2, %r3;
match.any.sync.b32 %r8, %r2, %r3;
"""
    )
    total, value, ballot, same = results(body, "%r4", "%r6", "%r7", "%r8")
    assert list(total) == [240, 256] * 16
    assert list(value) == [lane ^ 2 for lane in range(32)]
    assert list(ballot) == [0b101, 0b010] * 16
    assert list(same) == [0x5555_5555, 0xAAAA_AAAA] * 16


def test_two_sets_of_lanes_elect_one_each():
    body = """
and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0;
selp.b32 %r3, 0x55555555, 0xaaaaaaaa, %p1;
elect.sync %r4|%p2, %r3;
selp.u32 %r5, 1, 0, %p2;
"""
    lane, chosen = results(body, "%r4", "%r5")
    assert list(lane) == [0, 1] * 16
    assert list(chosen) == [1, 1] + [0] * 30


def test_a_shuffle_from_a_lane_that_is_not_there():
    guarded = "setp.lt.u32 %p1, %r0, 16;\n@%p1 shfl.sync.down.b32 %r2, %r0, 8, {clamp}, 0xffff;"
    clean(guarded.format(clamp=15))
    faults("inactive-lane", "lane 8 reads lane 16", guarded.format(clamp=31))
    exited = "setp.ge.u32 %p1, %r0, 16;\n@%p1 exit;\nshfl.sync.idx.b32 %r2, %r0, {lane}, 31, -1;"
    clean(exited.format(lane=15))
    faults("inactive-lane", "lane 0 reads lane 16", exited.format(lane=16))


COLLECTIVES = {
    "shfl": "shfl.sync.idx.b32 %r2, %r0, 0, 31, {mask};",
    "vote": "vote.sync.any.pred %p2, %p0, {mask};",
    "match": "match.any.sync.b32 %r2, %r0, {mask};",
    "match.all": "match.all.sync.b32 %r2, %r0, {mask};",
    "redux": "redux.sync.add.s32 %r2, %r0, {mask};",
    "elect": "elect.sync %r2|%p2, {mask};",
    "bar.warp": "bar.warp.sync {mask};",
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_mask_must_be_those_that_execute(name):
    text = COLLECTIVES[name]
    half = "setp.lt.u32 %p1, %r0, 16;\n@%p1 "
    clean(text.format(mask="-1"))
    clean(half + text.format(mask="0xffff"))
    faults("divergence", "lane 16 .* not in its member mask", text.format(mask="0xffff"))
    faults("divergence", "lane 16 is in the member mask", half + text.format(mask="-1"))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_lanes_that_took_different_ways_meet_again(name):
    body = """
and.b32 %r1, %r0, 3; setp.eq.u32 %p1, %r1, 0;
@%p1 bra JOIN;
L: sub.u32 %r1, %r1, 1; setp.gt.u32 %p3, %r1, 0; @%p3 bra L;
JOIN: """
    clean(body + COLLECTIVES[name].format(mask="-1"))


def test_votes():
    body = """
setp.lt.u32 %p1, %r0, 32; setp.lt.u32 %p2, %r0, 5; setp.gt.u32 %p3, %r0, 99;
vote.sync.all.pred %p4, %p1, -1; vote.sync.all.pred %p5, %p2, -1;
vote.sync.any.pred %p6, %p2, -1; vote.sync.any.pred %p7, %p3, -1;
vote.sync.uni.pred %p8, %p1, -1; vote.sync.uni.pred %p9, %p2, -1; vote.sync.uni.pred %p10, %p3, -1;
vote.sync.all.pred %p11, !%p3, -1;
vote.sync.ballot.b32 %r9, %p2, -1;
mov.u32 %r1, 0;
@%p4 or.b32 %r1, %r1, 1; @%p5 or.b32 %r1, %r1, 2; @%p6 or.b32 %r1, %r1, 4; @%p7 or.b32 %r1, %r1, 8;
@%p8 or.b32 %r1, %r1, 16; @%p9 or.b32 %r1, %r1, 32; @%p10 or.b32 %r1, %r1, 64; @%p11 or.b32 %r1, %r1, 128;
"""
    bits, ballot = results(body, "%r1", "%r9")
    assert set(bits) == {1 | 4 | 16 | 64 | 128}
    assert set(ballot) == {0b11111}


def test_matches():
    body = """
shr.u32 %r1, %r0, 3;
match.any.sync.b32 %r2, %r1, -1;
match.all.sync.b32 %r3|%p1, %r1, -1;
cvt.u64.u32 %rd1, %r1; shl.b64 %rd1, %rd1, 40;
match.any.sync.b64 %r4, %rd1, -1;
mov.u64 %rd2, 0x123456789a;
match.all.sync.b64 %r5|%p2, %rd2, -1;
selp.u32 %r6, 1, 0, %p1; selp.u32 %r7, 1, 0, %p2;
"""
    found = results(body, "%r2", "%r3", "%r4", "%r5", "%r6", "%r7")
    octets = [0xFF << (lane // 8 * 8) for lane in range(32)]
    assert list(found[0]) == list(found[2]) == octets
    assert [set(column) for column in (found[1], *found[3:])] == [{0}, {0xFFFF_FFFF}, {0}, {1}]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.u32", sum(VALUES) & 0xFFFF_FFFF),
        ("add.s32", sum(VALUES) & 0xFFFF_FFFF),
        ("min.u32", min(VALUES)),
        ("max.u32", max(VALUES)),
        ("min.s32", int(np.array(VALUES, np.uint32).view(np.int32).min()) & 0xFFFF_FFFF),
        ("max.s32", int(np.array(VALUES, np.uint32).view(np.int32).max()) & 0xFFFF_FFFF),
        ("and.b32", int(np.bitwise_and.reduce(np.array(VALUES)))),
        ("or.b32", int(np.bitwise_or.reduce(np.array(VALUES)))),
        ("xor.b32", int(np.bitwise_xor.reduce(np.array(VALUES)))),
    ],
)
def test_integer_reductions(operation, expected):
    (got,) = results(SEED + f"redux.sync.{operation} %r2, %r1, -1;", "%r2")
    assert set(got) == {expected}


NUMBERS = [0.0, -0.0, 1.5, -2.5, 1e-45, -1e-45, float("inf"), float("-inf"), 3e38, float("nan")]


@given(
    values=st.lists(st.sampled_from(NUMBERS), min_size=32, max_size=32),
    name=st.sampled_from(["min", "max"]),
    magnitude=st.booleans(),
    strict=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_float_reductions(values, name, magnitude, strict):
    numbers = np.abs(np.array(values, np.float32)) if magnitude else np.array(values, np.float32)
    reals = numbers[~np.isnan(numbers)]
    if not reals.size or (strict and reals.size < 32):
        expected = 0x7FFF_FFFF
    else:
        best = reals.min() if name == "min" else reals.max()
        if best == 0:
            zeros = np.signbit(reals[reals == 0])
            best = -0.0 if (zeros.any() if name == "min" else zeros.all()) else 0.0
        expected = struct.unpack("<I", struct.pack("<f", best))[0]
    opcode = f"redux.sync.{name}{'.abs' if magnitude else ''}{'.NaN' if strict else ''}.f32"
    body = (
        f"mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd100; ld.global.b32 %r1, [%rd1];\n{opcode} %r2, %r1, -1;\n"
    )
    ran = run(body + "st.global.b32 [%rd1], %r2;", buffers={"x": np.array(values, np.float32)})
    assert set(ran["x"].view(np.uint32)) == {expected}


def test_election():
    body = """
setp.ge.u32 %p1, %r0, 7;
mov.u32 %r1, 0; mov.u32 %r2, 77;
@%p1 elect.sync %r2|%p2, {mask};
@%p1 selp.u32 %r1, 1, 0, %p2;
"""
    elected, lane = results(body.format(mask="0xffffff80"), "%r1", "%r2")
    assert list(np.flatnonzero(elected)) == [7]
    assert list(lane) == [77] * 7 + [7] * 25
    machine = Machine()
    machine.elected_lane = 12
    elected, lane = results(body.format(mask="0xffffff80"), "%r1", "%r2", machine=machine)
    assert list(np.flatnonzero(elected)) == [12]
    machine = Machine()
    machine.elected_lane = 3
    elected, _ = results(body.format(mask="0xffffff80"), "%r1", "%r2", machine=machine)
    assert list(np.flatnonzero(elected)) == [7]
    (kept,) = results("elect.sync _|%p2, -1;\nselp.u32 %r1, 1, 0, %p2;", "%r1")
    assert list(np.flatnonzero(kept)) == [0]


def test_activemask_and_lane_masks():
    body = """
mov.u32 %r1, 0;
setp.lt.u32 %p1, %r0, 9;
@!%p1 bra END;
activemask.b32 %r1;
END:
mov.u32 %r2, %lanemask_lt; mov.u32 %r3, %lanemask_ge; mov.u32 %r4, %lanemask_eq;
"""
    active, less, more, equal = results(body, "%r1", "%r2", "%r3", "%r4")
    assert list(active) == [0x1FF] * 9 + [0] * 23
    assert list(less) == [(1 << i) - 1 for i in range(32)]
    assert list(more) == [0xFFFF_FFFF & ~((1 << i) - 1) for i in range(32)]
    assert list(equal) == [1 << i for i in range(32)]


@pytest.mark.parametrize(
    "text",
    [
        "redux.sync.and.u32 %r1, %r0, -1;",
        "redux.sync.add.f32 %r1, %r0, -1;",
        "shfl.sync.idx.b64 %r1, %r0, 0, 31, -1;",
        "shfl.idx.b32 %r1, %r0, 0, 31;",
    ],
)
def test_what_does_not_exist_is_unsupported(text):
    with pytest.raises(Fault, match=r"redux|shfl") as raised:
        run(text)
    assert raised.value.kind == "unsupported"
