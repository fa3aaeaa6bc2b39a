"""Shared memory between warps and between the lanes of one, named barriers, divergence."""

from __future__ import annotations

import numpy as np

from tests.silicon.sanitizer.program import WORDS, Defect, Idiom, Said, Words

__all__ = ["IDIOMS", "place"]


def place(values: Words, at: int = 0) -> Words:
    """An output that has these values from a word on."""
    y = np.zeros(WORDS, np.uint32)
    y[at : at + len(values)] = values
    return y


_T = np.arange(64)
_L = np.arange(32)

_EXCHANGE = """
xor.b32 %r9, %r5, 128; add.u32 %r9, %r9, %r3;
ld.global.b32 %r20, [%rd6];
st.shared.b32 [%r6+1024], %r20; //@write
bar.sync 0; //@meet
ld.shared.b32 %r21, [%r9+1024]; //@read
bar.sync 0; //@again
add.u32 %r22, %r21, 7;
st.shared.b32 [%r6+1024], %r22; //@rewrite
bar.sync 0; //@last
ld.shared.b32 %r23, [%r9+1024]; //@reread
add.u32 %r23, %r23, %r21;
st.global.b32 [%rd7], %r23;
"""
exchange = Idiom(
    "two warps exchange words between barriers",
    _EXCHANGE,
    lambda x: place(x[_T] + np.uint32(7) + x[_T ^ 32]),
    (
        Defect("no barrier before the read", {"meet": ""}, Said("race", ("write", "read"))),
        Defect("no barrier before the overwrite", {"again": ""}, Said("race", ("read", "rewrite"))),
        Defect("no barrier before the second read", {"last": ""}, Said("race", ("rewrite", "reread"))),
        Defect(
            "both warps write the same words",
            {"write": "and.b32 %r10, %r5, 127; add.u32 %r10, %r10, %r3; st.shared.b32 [%r10+1024], %r20;"},
            Said("race", ("write",)),
        ),
        Defect(
            "half of the first warp skips a barrier",
            {"meet": "setp.lt.u32 %p1, %r0, 16; @%p1 bra SKIP; bar.sync 0; SKIP:"},
            Said("divergence", ("meet", "again")),
            hangs=True,
        ),
        Defect(
            "half of the first warp waits at another barrier of the text",
            {"meet": "setp.lt.u32 %p1, %r0, 16; @%p1 bra SKIP; bar.sync 0; bra MET; SKIP: bar.sync 0; MET:"},
            Said("divergence", ("meet",)),
            hangs=True,
        ),
        Defect(
            "the second warp leaves before the barrier",
            {"again": "setp.ge.u32 %p1, %r0, 32; @%p1 bra OUT; bar.sync 0, 64; bra ON; OUT: ret; ON:"},
            Said("deadlock", ("again",)),
            hangs=True,
        ),
    ),
)

_NAMED = """
setp.ge.u32 %p1, %r0, 32;
@%p1 bra TAKE;
ld.global.b32 %r20, [%rd6];
st.shared.b32 [%r6+1024], %r20; //@write
bar.arrive 1, 64; //@arrive
bar.sync 2, 64; //@back
st.shared.b32 [%r6+1024], 5; //@rewrite
bra END;
TAKE: sub.u32 %r9, 252, %r5; add.u32 %r9, %r9, %r3;
bar.sync 1, 64; //@sync
ld.shared.b32 %r21, [%r9+1024]; //@read
bar.arrive 2, 64; //@release
st.global.b32 [%rd7], %r21;
END:
"""
named = Idiom(
    "a producer arrives at a named barrier that a consumer waits at",
    _NAMED,
    lambda x: place(x[31 - _L], 32),
    (
        Defect("the consumer does not wait", {"sync": "bar.arrive 1, 64;"}, Said("race", ("write", "read"))),
        Defect("the producer does not wait", {"back": "bar.arrive 2, 64;"}, Said("race", ("read", "rewrite"))),
        Defect("the producer does not arrive", {"arrive": ""}, Said("deadlock", ("sync",)), hangs=True),
        Defect(
            "the barrier counts 96 threads",
            {"arrive": "bar.arrive 1, 96;", "sync": "bar.sync 1, 96;"},
            Said("barrier", ("arrive",)),
            hangs=True,
        ),
        Defect("both sides count differently", {"sync": "bar.sync 1, 96;"}, Said("barrier", ("sync",)), hangs=True),
        Defect("the consumer waits at another barrier", {"sync": "bar.sync 3, 64;"}, Said("deadlock", ("sync",)), True),
        Defect(
            "a count that is no multiple of the warp size",
            {"sync": "mov.u32 %r15, 40; bar.sync 1, %r15;"},
            Said("barrier", ("sync",)),
            hangs=True,
        ),
        Defect(
            "a barrier that does not exist",
            {"sync": "add.u32 %r15, %r1, 16; bar.sync %r15, 64;"},
            Said("barrier", ("sync",)),
            hangs=True,
        ),
    ),
)

_LANES = """
ld.global.b32 %r20, [%rd6];
sub.u32 %r9, 124, %r5; add.u32 %r9, %r9, %r3;
st.shared.b32 [%r6+1024], %r20; //@write
bar.warp.sync 0xffffffff; //@meet
ld.shared.b32 %r21, [%r9+1024]; //@read
bar.warp.sync 0xffffffff; //@again
st.shared.b32 [%r6+1024], %r21; //@rewrite
bar.warp.sync 0xffffffff; //@last
ld.shared.b32 %r22, [%r9+1024]; //@reread
add.u32 %r22, %r22, %r21;
st.global.b32 [%rd7], %r22;
"""
lanes = Idiom(
    "lanes of one warp exchange words between bar.warp.sync",
    _LANES,
    lambda x: place(x[_L] + x[31 - _L]),
    (
        Defect("no bar.warp.sync before the read", {"meet": ""}, Said("race", ("write", "read"))),
        Defect("no bar.warp.sync before the overwrite", {"again": ""}, Said("race", ("read", "rewrite"))),
        Defect("no bar.warp.sync before the second read", {"last": ""}, Said("race", ("rewrite", "reread"))),
        Defect(
            "a shuffle instead of bar.warp.sync",
            {"meet": "shfl.sync.idx.b32 %r30, %r20, 0, 31, 0xffffffff;"},
            Said("race", ("write", "read")),
        ),
        Defect(
            "a mask without the upper lanes, which are there too",
            {"meet": "bar.warp.sync 0x0000ffff;"},
            Said("divergence", ("meet",)),
            hangs=True,
        ),
        Defect(
            "all lanes write one word",
            {"write": "st.shared.b32 [%r6+1024], %r20; st.shared.b32 [%r3+2048], %r20;"},
            Said("lanes-race", ("write",)),
        ),
    ),
    block=32,
)

_BRANCHES = """
ld.global.b32 %r20, [%rd6];
xor.b32 %r9, %r5, 64; add.u32 %r9, %r9, %r3;
setp.ge.u32 %p1, %r0, 16;
mov.u32 %r21, 0;
@%p1 bra HIGH;
st.shared.b32 [%r6+1024], %r20; //@write
HIGH: bar.warp.sync 0xffffffff; //@meet
@!%p1 bra LOW;
ld.shared.b32 %r21, [%r9+1024]; //@read
LOW: st.global.b32 [%rd7], %r21;
"""
branches = Idiom(
    "half of a warp writes in a branch and the other half reads",
    _BRANCHES,
    lambda x: place(np.where(_L < 16, 0, x[_L ^ 16]).astype(np.uint32)),
    (Defect("no bar.warp.sync", {"meet": "HIGH:"}, Said("race", ("write", "read"))),),
    block=32,
)

_REDUCE = """
ld.global.b32 %r20, [%rd6];
shfl.sync.bfly.b32 %r21, %r20, 16, 31, 0xffffffff;
add.u32 %r20, %r20, %r21;
shfl.sync.bfly.b32 %r21, %r20, 8, 31, 0xffffffff;
add.u32 %r20, %r20, %r21;
shfl.sync.bfly.b32 %r21, %r20, 4, 31, 0xffffffff;
add.u32 %r20, %r20, %r21;
shfl.sync.bfly.b32 %r21, %r20, 2, 31, 0xffffffff;
add.u32 %r20, %r20, %r21;
shfl.sync.bfly.b32 %r21, %r20, 1, 31, 0xffffffff; //@shuffle
add.u32 %r20, %r20, %r21;
shl.b32 %r9, %r1, 2; add.u32 %r9, %r9, %r3;
@%p11 st.shared.b32 [%r9+1024], %r20; //@write
bar.sync 0; //@meet
ld.shared.v4.b32 {%r30, %r31, %r32, %r33}, [%r3+1024]; //@read
add.u32 %r30, %r30, %r31; add.u32 %r32, %r32, %r33; add.u32 %r30, %r30, %r32;
st.global.b32 [%rd7], %r30;
"""
reduce = Idiom(
    "four warps add by shuffles, then through shared memory",
    _REDUCE,
    lambda x: place(np.full(128, x[:128].sum(dtype=np.uint32), np.uint32)),
    (
        Defect("no barrier before the sums are read", {"meet": ""}, Said("race", ("write", "read"))),
        Defect(
            "one warp fewer writes its sum",
            {"write": "setp.lt.and.u32 %p2, %r1, 3, %p11; @%p2 st.shared.b32 [%r9+1024], %r20;"},
            Said("uninitialised", ("read",)),
        ),
        Defect(
            "a shuffle that upper lanes skip, and its mask names",
            {"shuffle": "setp.ge.u32 %p2, %r2, 16; @%p2 bra PAST; "
                        "shfl.sync.bfly.b32 %r21, %r20, 1, 31, 0xffffffff; PAST:"},
            Said("divergence", ("shuffle",)),
            hangs=True,
        ),
    ),
    block=128,
)  # fmt: skip

_ATOMIC = """
@%p10 st.shared.b32 [%r3+1024], 0; //@zero
bar.sync 0; //@made
ld.global.b32 %r20, [%rd6];
atom.shared.add.u32 %r21, [%r3+1024], %r20; //@add
bar.sync 0; //@meet
ld.shared.b32 %r22, [%r3+1024]; //@read
st.global.b32 [%rd7], %r22;
"""
atomic = Idiom(
    "all threads add to a word of shared memory",
    _ATOMIC,
    lambda x: place(np.full(64, x[:64].sum(dtype=np.uint32), np.uint32)),
    (
        Defect("no barrier after the word is zeroed", {"made": ""}, Said("race", ("zero", "add"))),
        Defect("no barrier before the sum is read", {"meet": ""}, Said("race", ("add", "read"))),
        Defect(
            "the word is read, added to and written",
            {"add": "ld.shared.b32 %r21, [%r3+1024]; add.u32 %r21, %r21, %r20; st.shared.b32 [%r3+1024], %r21;"},
            Said("race", ("add",)),
        ),
    ),
)

_MATRIX = """
and.b32 %r9, %r2, 7; shl.b32 %r9, %r9, 4; add.u32 %r9, %r9, %r3;
ld.global.b32 %r20, [%rd6];
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r9+1024], {%r20}; //@write
bar.warp.sync 0xffffffff; //@meet
ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r21}, [%r9+1024]; //@read
st.global.b32 [%rd7], %r21;
"""


def _transposed(x: Words) -> Words:
    matrix = x[:32].copy().view(np.uint16).reshape(8, 8)
    return place(np.ascontiguousarray(matrix.T).reshape(-1).view(np.uint32))


matrix = Idiom(
    "stmatrix, then ldmatrix transposed",
    _MATRIX,
    _transposed,
    (Defect("no bar.warp.sync between them", {"meet": ""}, Said("race", ("write", "read"))),),
    block=32,
)

IDIOMS = (exchange, named, lanes, branches, reduce, atomic, matrix)
