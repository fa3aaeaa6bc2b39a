"""Clusters (distributed shared memory), and global memory between CTAs."""

from __future__ import annotations

import numpy as np

from tests.silicon.sanitizer.pipelines import wait
from tests.silicon.sanitizer.program import WORDS, Defect, Idiom, Said, Words
from tests.silicon.sanitizer.shared import place

__all__ = ["IDIOMS"]

_G = np.arange(64)
_MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
_LOOSE = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"

_PEER = "mov.u32 %r10, %cluster_ctarank; xor.b32 %r10, %r10, 1; mapa.shared::cluster.u32 %r9, %r6, %r10;"

_PULL = f"""
{_PEER}
ld.global.b32 %r20, [%rd6];
st.shared.b32 [%r6+1024], %r20; //@write
{_MEET} //@meet
ld.shared::cluster.b32 %r21, [%r9+1024]; //@read
st.global.b32 [%rd7], %r21;
{_MEET} //@leave
"""
pull = Idiom(
    "a CTA reads its peer's shared memory",
    _PULL,
    lambda x: place(x[_G ^ 32]),
    (
        Defect("no cluster barrier before the read", {"meet": ""}, Said("race", ("write", "read"))),
        Defect("a barrier of the CTA instead", {"meet": "bar.sync 0;"}, Said("race", ("write", "read"))),
        Defect("a relaxed cluster barrier", {"meet": _LOOSE}, Said("race", ("write", "read"))),
        Defect("no cluster barrier before the CTA ends", {"leave": ""}, Said("cluster", ("read",)), hangs=True),
    ),
    block=32, grid=2, cluster=2,
)  # fmt: skip

_PUSH = f"""
{_PEER}
ld.global.b32 %r20, [%rd6];
{_MEET} //@start
st.shared::cluster.b32 [%r9+1024], %r20; //@write
{_MEET} //@meet
ld.shared.b32 %r21, [%r6+1024]; //@read
st.global.b32 [%rd7], %r21;
{_MEET} //@leave
"""
push = Idiom(
    "a CTA writes to its peer's shared memory",
    _PUSH,
    lambda x: place(x[_G ^ 32]),
    (
        Defect(
            "no cluster barrier before the write, so that the peer need not have started",
            {"start": ""},
            Said("race", ("write",)),
        ),
        Defect("no cluster barrier before the read", {"meet": ""}, Said("race", ("write", "read"))),
    ),
    block=32, grid=2, cluster=2,
)  # fmt: skip

_REMOTE = f"""
{_PEER}
mapa.shared::cluster.u32 %r12, %r3, %r10;
@%p10 mbarrier.init.shared::cta.b64 [%r3], 32; //@init
@%p10 fence.mbarrier_init.release.cluster; //@fence
{_MEET} //@made
ld.global.b32 %r20, [%rd6];
st.shared::cluster.b32 [%r9+1024], %r20; //@write
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12]; //@arrive
{wait("%r3", 0, "GOT", ".acquire.cluster")} //@wait
sub.u32 %r11, 124, %r5; add.u32 %r11, %r11, %r3;
ld.shared.b32 %r21, [%r11+1024]; //@read
st.global.b32 [%rd7], %r21;
{_MEET} //@leave
"""
_REVERSED = np.concatenate([32 + 31 - _G[:32], 31 - _G[:32]])
_WAIT_RELAXED = wait("%r3", 0, "GOT", ".relaxed.cluster")
remote = Idiom(
    "a CTA writes to its peer and arrives at its mbarrier",
    _REMOTE,
    lambda x: place(x[_REVERSED]),
    (
        Defect("no wait", {"wait": ""}, Said("race", ("write", "read"))),
        Defect("a relaxed wait", {"wait": _WAIT_RELAXED}, Said("race", ("write", "read"))),
        Defect("a relaxed arrive", {"arrive": lambda line: line.replace("release", "relaxed")},
               Said("race", ("write", "read"))),
        Defect("a wait that acquires from the own CTA only", {"wait": wait("%r3", 0, "GOT")}, None),
        Defect("a release to the own CTA only", {"arrive": lambda line: line.replace("release.cluster", "release.cta")},
               Said("race", ("write", "read"))),
        Defect("no cluster barrier behind mbarrier.init", {"made": "bar.sync 0;"}, Said("uninitialised", ("arrive",)),
               hangs=True),
    ),
    block=32, grid=2, cluster=2,
)  # fmt: skip

_ASYNC = f"""
{_PEER}
mapa.shared::cluster.u32 %r12, %r3, %r10;
@%p10 mbarrier.init.shared::cta.b64 [%r3], 1; //@init
@%p10 fence.mbarrier_init.release.cluster; //@fence
{_MEET} //@made
@%p10 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128; //@expect
ld.global.b32 %r20, [%rd6];
add.u32 %r9, %r9, 1024;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9], %r20, [%r12]; //@write
{wait("%r3", 0, "GOT")} //@wait
sub.u32 %r11, 124, %r5; add.u32 %r11, %r11, %r3;
ld.shared.b32 %r21, [%r11+1024]; //@read
st.global.b32 [%rd7], %r21;
{_MEET} //@leave
"""
st_async = Idiom(
    "st.async to the peer",
    _ASYNC,
    lambda x: place(x[_REVERSED]),
    (
        Defect("no wait", {"wait": ""}, Said("race", ("write", "read"))),
        Defect("one word fewer is expected", {"expect": lambda line: line.replace("128;", "124;")},
               Said("mbarrier", ("write",)), hangs=True),
    ),
    block=32, grid=2, cluster=2,
)  # fmt: skip

_MULTICAST = f"""
@%p10 mbarrier.init.shared::cta.b64 [%r3], 1; //@init
@%p10 fence.mbarrier_init.release.cluster; //@fence
{_MEET} //@made
@%p10 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128; //@expect
mov.u32 %r10, %cluster_ctarank; setp.eq.and.u32 %p3, %r10, 0, %p10; mov.u16 %rs1, 3;
add.u32 %r11, %r3, 1024;
@%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r11], [%rd100], 128, [%r3], %rs1; //@load
{wait("%r3", 0, "GOT")} //@wait
ld.shared.b32 %r21, [%r6+1024]; //@read
st.global.b32 [%rd7], %r21;
{_MEET} //@leave
"""  # noqa: E501
multicast = Idiom(
    "one bulk copy to both CTAs",
    _MULTICAST,
    lambda x: place(x[_G % 32]),
    (
        Defect("no wait", {"wait": ""}, Said("race", ("load", "read"))),
        Defect("the peer expects no bytes",
               {"expect": "mov.u32 %r10, %cluster_ctarank; setp.eq.and.u32 %p3, %r10, 0, %p10; "
                "@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;"},
               Said("deadlock", ("wait",)), hangs=True),
        Defect("no cluster barrier behind mbarrier.init", {"made": "bar.sync 0;"}, Said("race", ("init", "load")),
               hangs=True),
    ),
    block=32, grid=2, cluster=2,
)  # fmt: skip

_FLAG = """
mul.wide.u32 %rd9, %r0, 4; add.u64 %rd10, %rd103, %rd9;
setp.ne.u32 %p1, %r4, 0;
@%p1 bra READER;
ld.global.b32 %r20, [%rd6];
st.global.b32 [%rd10], %r20; //@write
bar.sync 0; //@met
fence.acq_rel.gpu; //@release
@%p10 st.relaxed.gpu.global.b32 [%rd102], 1; //@raise
bra END;
READER: @!%p10 bra SEEN;
SPIN: ld.relaxed.gpu.global.b32 %r11, [%rd102]; //@see
setp.eq.u32 %p2, %r11, 0; @%p2 bra SPIN;
fence.acq_rel.gpu; //@acquire
SEEN: bar.sync 0; //@go
ld.global.b32 %r21, [%rd10]; //@read
st.global.b32 [%rd7], %r21;
END:
"""
_DATA = Said("race", ("write", "read"))
flag = Idiom(
    "a CTA raises a flag in global memory, another waits for it",
    _FLAG,
    lambda x: place(x[_G], 64),
    (
        Defect("no fence before the flag is raised", {"release": ""}, _DATA),
        Defect("a fence of the CTA before the flag is raised", {"release": "fence.acq_rel.cta;"}, _DATA),
        Defect("no barrier before the flag is raised", {"met": ""}, _DATA),
        Defect("no fence after the flag is seen", {"acquire": ""}, _DATA),
        Defect("no barrier after the flag is seen", {"go": "SEEN:"}, _DATA),
        Defect("the flag is read by a plain load, once",
               {"see": "SPIN: ld.global.b32 %r11, [%rd102]; mov.u32 %r11, 1;"}, _DATA),
        Defect("nobody raises the flag", {"raise": ""}, Said("deadlock", ("see",)), hangs=True),
    ),
    grid=2,
)  # fmt: skip

_COUNTED = """
mul.wide.u32 %rd9, %r8, 4; add.u64 %rd10, %rd103, %rd9;
mul.wide.u32 %rd9, %r0, 4; add.u64 %rd11, %rd103, %rd9; add.u64 %rd12, %rd101, %rd9;
ld.global.b32 %r20, [%rd6];
st.global.b32 [%rd10], %r20; //@write
{before}
@%p10 atom.global.add.u32 %r11, [%rd102], 1; //@count
{after}
@%p10 st.shared.b32 [%r3+1024], %r11;
bar.sync 0; //@told
ld.shared.b32 %r11, [%r3+1024];
setp.ne.u32 %p1, %r11, 3;
@%p1 bra END;
{then}
ld.global.b32 %r21, [%rd11]; //@read
ld.global.b32 %r22, [%rd11+256]; //@read
ld.global.b32 %r23, [%rd11+512]; //@read
ld.global.b32 %r24, [%rd11+768]; //@read
add.u32 %r21, %r21, %r22; add.u32 %r23, %r23, %r24; add.u32 %r21, %r21, %r23;
st.global.b32 [%rd12], %r21;
END:
"""


def _sums(x: Words) -> Words:
    return place(x[:256].reshape(4, 64).sum(axis=0, dtype=np.uint32))


last = Idiom(
    "the CTA that counts last adds what all wrote",
    _COUNTED.format(before="bar.sync 0; //@met\n@%p10 fence.acq_rel.gpu; //@release",
                    after="@%p10 fence.acq_rel.gpu; //@acquire", then=""),
    _sums,
    (
        Defect("no fence before counting", {"release": ""}, _DATA),
        Defect("no barrier before counting", {"met": ""}, _DATA),
        Defect("no fence after counting", {"acquire": ""}, _DATA),
        Defect("a counter of the CTA's scope",
               {"count": "@%p10 atom.relaxed.cta.global.add.u32 %r11, [%rd102], 1;"}, _DATA),
    ),
    grid=4,
)  # fmt: skip

everybody = Idiom(
    "every thread makes a membar.gl before one of them counts",
    _COUNTED.format(before="membar.gl; //@release\nbar.sync 0; //@met", after="", then="membar.gl; //@acquire"),
    _sums,
    (
        Defect("no membar.gl before counting", {"release": ""}, _DATA),
        Defect("no membar.gl after counting", {"acquire": ""}, _DATA),
        Defect("a membar of the CTA before counting", {"release": "membar.cta;"}, _DATA),
    ),
    grid=4,
)  # fmt: skip

_SCRATCH = """
xor.b32 %r9, %r8, 32; mul.wide.u32 %rd9, %r9, 4; add.u64 %rd11, %rd101, %rd9; add.u64 %rd11, %rd11, 2048;
ld.global.b32 %r20, [%rd6];
st.global.b32 [%rd7+2048], %r20; //@write
bar.sync 0; //@meet
ld.global.b32 %r21, [%rd11]; //@read
st.global.b32 [%rd7], %r21; //@out
"""
_H = np.arange(128)
scratch = Idiom(
    "warps exchange words through global memory",
    _SCRATCH,
    lambda x: place(x[_H ^ 32]) + place(x[_H], 512),
    (
        Defect("no barrier", {"meet": ""}, _DATA),
        Defect("the other CTA's words are read", {"read": "xor.b32 %r9, %r8, 64; mul.wide.u32 %rd9, %r9, 4; "
               "add.u64 %rd11, %rd101, %rd9; ld.global.b32 %r21, [%rd11+2048];"}, _DATA),
        Defect("both CTAs write the same words", {"out": "and.b32 %r9, %r8, 63; mul.wide.u32 %rd9, %r9, 4; "
               "add.u64 %rd11, %rd101, %rd9; st.global.b32 [%rd11], %r21;"}, Said("race", ("out",))),
        Defect("words that nobody wrote are read", {"read": "ld.global.b32 %r21, [%rd103];"},
               Said("uninitialised", ("read",))),
    ),
    grid=2,
)  # fmt: skip

_BOUNDS = """
ld.global.b32 %r20, [%rd6]; //@load
st.shared.b32 [%r6+1024], %r20; //@keep
bar.sync 0;
ld.shared.b32 %r21, [%r6+1024]; //@take
st.global.b32 [%rd7], %r21; //@store
"""
_END = 4 * WORDS
bounds = Idiom(
    "loads and stores inside their buffers",
    _BOUNDS,
    lambda x: place(x[_G]),
    (
        Defect("a load one word past the end of a tensor", {"load": f"ld.global.b32 %r20, [%rd6+{_END - 252}];"},
               Said("out-of-bounds", ("load",))),
        Defect("a store one word past the end of a tensor", {"store": f"st.global.b32 [%rd7+{_END - 252}], %r21;"},
               Said("out-of-bounds", ("store",))),
        Defect("a load far from every tensor",
               {"load": "mov.u64 %rd20, 0x400000000000; add.u64 %rd20, %rd6, %rd20; ld.global.b32 %r20, [%rd20];"},
               Said("out-of-bounds", ("load",))),
        Defect("a load of address 0", {"load": "mov.u64 %rd20, 0; ld.global.b32 %r20, [%rd20];"},
               Said("out-of-bounds", ("load",))),
        Defect("a misaligned load", {"load": "ld.global.b32 %r20, [%rd6+2];"}, Said("misaligned", ("load",))),
        Defect("a store past the end of shared memory", {"keep": "st.shared.b32 [%r6+7940], %r20; st.shared.b32 "
               "[%r6+1024], %r20;"}, Said("out-of-bounds", ("keep",))),
        Defect("a misaligned load of shared memory", {"take": "ld.shared.b32 %r21, [%r6+1026];"},
               Said("misaligned", ("take",))),
        Defect("shared memory that nobody wrote is read", {"take": "ld.shared.b32 %r21, [%r6+2048];"},
               Said("uninitialised", ("take",))),
    ),
)  # fmt: skip


IDIOMS = (pull, push, remote, st_async, multicast, flag, last, everybody, scratch, bounds)
