"""cp.async groups, bulk stores, tensor copies, wgmma: asynchronous work and the proxies."""

from __future__ import annotations

import numpy as np

from tests.silicon.sanitizer.pipelines import flipped, wait
from tests.silicon.sanitizer.program import WORDS, Defect, Idiom, Said, Words
from tests.silicon.sanitizer.shared import place

__all__ = ["IDIOMS"]

_T = np.arange(64)

_SINGLE = """
xor.b32 %r9, %r5, 128; add.u32 %r9, %r9, %r3;
cp.async.ca.shared.global [%r6+1024], [%rd6], 4; //@copy
cp.async.commit_group; //@commit
cp.async.wait_group 0; //@wait
bar.sync 0; //@meet
ld.shared.b32 %r21, [%r9+1024]; //@read
st.global.b32 [%rd7], %r21;
"""
_COPY = Said("race", ("copy", "read"))
single = Idiom(
    "cp.async, wait_group, barrier",
    _SINGLE,
    lambda x: place(x[_T ^ 32]),
    (
        Defect("no wait_group", {"wait": ""}, _COPY),
        Defect("one group may be pending", {"wait": "cp.async.wait_group 1;"}, _COPY),
        Defect("no commit_group", {"commit": ""}, _COPY),
        Defect("no barrier", {"meet": ""}, _COPY),
        Defect("the barrier comes before wait_group", {"wait": "bar.sync 0;", "meet": "cp.async.wait_group 0;"}, _COPY),
    ),
)

_OWN = """
cp.async.ca.shared.global [%r6+1024], [%rd6], 4; //@copy
cp.async.wait_all; //@wait
ld.shared.b32 %r21, [%r6+1024]; //@read
st.global.b32 [%rd7], %r21;
"""
own = Idiom(
    "cp.async of the thread's own word",
    _OWN,
    lambda x: place(x[_T]),
    (Defect("no wait_all", {"wait": ""}, _COPY),),
)


def _double() -> str:
    lines = ["xor.b32 %r9, %r5, 128; add.u32 %r9, %r9, %r3;", "mov.u32 %r30, 0;"]
    lines += ["cp.async.ca.shared.global [%r6+1024], [%rd6], 4; //@copy", "cp.async.commit_group;"]
    for step in range(4):
        if step < 3:
            to, source = 1024 + 256 * ((step + 1) % 2), 256 * (step + 1)
            lines.append(f"cp.async.ca.shared.global [%r6+{to}], [%rd6+{source}], 4; //@copy")
        lines += ["cp.async.commit_group;", "cp.async.wait_group 1; //@wait", "bar.sync 0; //@meet"]
        lines.append(f"ld.shared.b32 %r21, [%r9+{1024 + 256 * (step % 2)}]; //@read")
        lines += ["mad.lo.u32 %r30, %r30, 3, %r21;", "bar.sync 0; //@again"]
    return "\n".join([*lines, "st.global.b32 [%rd7], %r30;"])


def _double_want(x: Words) -> Words:
    total = np.zeros(64, np.uint32)
    for step in range(4):
        total = total * np.uint32(3) + x[64 * step + (_T ^ 32)]
    return place(total)


double = Idiom(
    "cp.async into two buffers, one group ahead",
    _double(),
    _double_want,
    (
        Defect("two groups may be pending", {"wait": "cp.async.wait_group 2;"}, _COPY),
        Defect("no barrier behind wait_group", {"meet": ""}, _COPY),
        Defect("no barrier before a buffer is filled again", {"again": ""}, _COPY),
    ),
)

_STORE = """
ld.global.b32 %r20, [%rd6];
st.shared.b32 [%r6+1024], %r20; //@write
fence.proxy.async.shared::cta; //@fence
bar.sync 0; //@meet
add.u32 %r11, %r3, 1024;
@%p10 cp.async.bulk.global.shared::cta.bulk_group [%rd101], [%r11], 256; //@store
cp.async.bulk.commit_group; //@commit
cp.async.bulk.wait_group.read 0; //@wait
bar.sync 0; //@again
add.u32 %r21, %r20, 5;
st.shared.b32 [%r6+1024], %r21; //@rewrite
fence.proxy.async.shared::cta; //@fence_again
bar.sync 0; //@last
add.u64 %rd10, %rd101, 256;
@%p10 cp.async.bulk.global.shared::cta.bulk_group [%rd10], [%r11], 256; //@restore
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0; //@end
"""
_STORED = Said("race", ("store", "rewrite"))
store = Idiom(
    "bulk stores of a buffer that is written again",
    _STORE,
    lambda x: place(np.concatenate([x[_T], x[_T] + np.uint32(5)])),
    (
        Defect("no proxy fence", {"fence": ""}, Said("proxy", ("write", "store"))),
        Defect("no proxy fence after the overwrite", {"fence_again": ""}, Said("proxy", ("rewrite", "restore"))),
        Defect("a proxy fence for global memory", {"fence": "fence.proxy.async.global;"},
               Said("proxy", ("write", "store"))),
        Defect("no barrier before the store", {"meet": ""}, Said("race", ("write", "store"))),
        Defect("the fence comes behind the barrier, in the thread that stores",
               {"fence": "bar.sync 0;", "meet": "@%p10 fence.proxy.async.shared::cta;"}, None),
        Defect("no wait_group.read", {"wait": ""}, _STORED),
        Defect("one group may be pending", {"wait": "cp.async.bulk.wait_group.read 1;"}, _STORED),
        Defect("no commit_group", {"commit": ""}, _STORED),
        Defect("no barrier behind wait_group", {"again": ""}, _STORED),
    ),
)  # fmt: skip


def _tiles() -> str:
    lines = ["@!%p10 bra MADE;", "mbarrier.init.shared::cta.b64 [%r3], 1; //@init"]
    lines += ["fence.mbarrier_init.release.cluster;", "MADE: bar.sync 0; //@made", "add.u64 %rd11, %rd104, 128;"]
    lines += ["add.u32 %r11, %r3, 1024; add.u32 %r12, %r3, 4096;", "mov.u32 %r14, 0;"]
    for tile in range(3):
        lines += [
            f"mov.u32 %r13, {8 * tile};",
            "@%p10 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024; //@expect",
            "@%p10 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%r11], [%rd104, {%r14, %r13}], [%r3]; //@load",
            wait("%r3", tile & 1, f"T{tile}") + " //@full",
            *(f"ld.shared.b32 %r{20 + i}, [%r6+{1024 + 256 * i}]; //@read" for i in range(4)),
            "@%p10 cp.async.bulk.wait_group.read 0; //@wait",
            "bar.sync 0; //@again",
            *(f"add.u32 %r{20 + i}, %r{20 + i}, 1;" for i in range(4)),
            *(f"st.shared.b32 [%r6+{4096 + 256 * i}], %r{20 + i}; //@write" for i in range(4)),
            "fence.proxy.async.shared::cta; //@fence",
            "bar.sync 0; //@meet",
            "@%p10 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd11, {%r14, %r13}], [%r12]; //@store",
            "@%p10 cp.async.bulk.commit_group; //@commit",
        ]
    return "\n".join([*lines, "@%p10 cp.async.bulk.wait_group 0; //@end"])


tiles = Idiom(
    "tensor copies load and store tiles",
    _tiles(),
    lambda x: place(x[: 3 * 256] + np.uint32(1)),
    (
        Defect("no wait for the load", {"full": ""}, Said("race", ("load", "read")), hangs=True),
        Defect("wrong parity", {"full": flipped}, Said("race", ("load", "read")), hangs=True),
        Defect("one row fewer is expected", {"expect": lambda line: line.replace("1024;", "896;")},
               Said("deadlock", ("full",)), hangs=True),
        Defect("no proxy fence before the store", {"fence": ""}, Said("proxy", ("write", "store"))),
        Defect("no barrier before the store", {"meet": ""}, Said("race", ("write", "store"))),
        Defect("no wait_group.read before the overwrite", {"wait": ""}, Said("race", ("store", "write"))),
        Defect("no barrier at all", {"again": "", "meet": ""}, Said("race", ("write", "store"))),
        Defect("no barrier behind wait_group.read", {"again": ""}, Said("race", ("store", "write"))),
    ),
)  # fmt: skip

# A: 64 x 16 and B: 8 x 16 of fp16, K-major without swizzle: 8 x 8 core matrices of 128 bytes, two along K.


def _halves() -> Words:
    values = (np.arange(2 * WORDS) * 37 % 11 - 5).astype(np.float16)
    return values.view(np.uint32)


def _matrix(words: Words, rows: int) -> np.ndarray:
    return words.view(np.float16).reshape(rows // 8, 2, 8, 8).transpose(0, 2, 1, 3).reshape(rows, 16).astype(np.float32)


def _product(x: Words) -> Words:
    image = x[:576].copy()
    other = x[256 : 256 + 576].copy()
    total = np.zeros((64, 8), np.float32)
    for one in (image, other):
        total += _matrix(one[:512].copy(), 64) @ _matrix(one[512:].copy(), 8).T
    thread = np.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, 2 * (thread % 4)
    out = np.stack([total[row + 8 * (i // 2), column + i % 2] for i in range(4)], axis=1)
    return place(np.ascontiguousarray(out, np.float32).reshape(-1).view(np.uint32))


def _image(offset: int, tag: str) -> list[str]:
    lines = []
    for i in range(4):
        lines.append(f"ld.global.b32 %r20, [%rd6+{offset + 512 * i}];")
        lines.append(f"st.shared.b32 [%r6+{1024 + 512 * i}], %r20; //@{tag}")
    lines.append(f"@%p3 ld.global.b32 %r20, [%rd6+{offset + 2048}];")
    lines.append(f"@%p3 st.shared.b32 [%r6+{1024 + 2048}], %r20; //@{tag}")
    return lines


def _wgmma() -> str:
    flags = "{%f1, %f2, %f3, %f4}, %rd20, %rd21, %p4, 1, 1, 0, 0;"
    opcode = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    layout = 128 >> 4 << 16 | 256 >> 4 << 32
    lines = [
        "setp.lt.u32 %p3, %r0, 64; setp.eq.u32 %p4, %r3, %r3;",
        *(f"mov.f32 %f{i}, 0f00000000; //@clear" for i in range(1, 5)),
        f"add.u32 %r11, %r3, 1024; shr.u32 %r11, %r11, 4; cvt.u64.u32 %rd20, %r11; or.b64 %rd20, %rd20, {layout};",
        f"add.u32 %r11, %r3, 3072; shr.u32 %r11, %r11, 4; cvt.u64.u32 %rd21, %r11; or.b64 %rd21, %rd21, {layout};",
        *_image(0, "write"),
        "fence.proxy.async.shared::cta; //@proxy",
        "bar.sync 0; //@meet",
        "wgmma.fence.sync.aligned; //@order",
        f"{opcode} {flags} //@multiply",
        "wgmma.commit_group.sync.aligned; //@commit",
        "wgmma.wait_group.sync.aligned 0; //@wait",
        "bar.sync 0; //@again",
        *_image(1024, "rewrite"),
        "fence.proxy.async.shared::cta; //@proxy_again",
        "bar.sync 0; //@last",
        "wgmma.fence.sync.aligned; //@order_again",
        f"{opcode} {flags} //@multiply_again",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0; //@end",
        "shl.b32 %r12, %r0, 4; cvt.u64.u32 %rd10, %r12; add.u64 %rd10, %rd101, %rd10;",
        "st.global.v4.f32 [%rd10], {%f1, %f2, %f3, %f4}; //@result",
    ]
    return "\n".join(lines)


wgmma = Idiom(
    "wgmma of operands that are written twice",
    _wgmma(),
    _product,
    (
        Defect("no proxy fence", {"proxy": ""}, Said("proxy", ("write", "multiply"))),
        Defect("no proxy fence after the overwrite", {"proxy_again": ""}, Said("proxy", ("rewrite", "multiply_again"))),
        Defect("no barrier before the product", {"meet": ""}, Said("race", ("write", "multiply"))),
        Defect("no wgmma.fence", {"order": "", "order_again": ""}, Said("wgmma", ("multiply",))),
        Defect("no wait_group before the overwrite", {"wait": ""}, Said("race", ("multiply", "rewrite"))),
        Defect("one group may be pending", {"wait": "wgmma.wait_group.sync.aligned 1;"},
               Said("race", ("multiply", "rewrite"))),
        Defect("no commit_group", {"commit": ""}, Said("race", ("multiply", "rewrite"))),
        Defect("no barrier before the overwrite", {"again": ""}, None),
        Defect("no wait_group before the result is read", {"end": ""}, Said("wgmma", ("result",))),
    ),
    block=128,
    fill=_halves,
)  # fmt: skip

IDIOMS = (single, own, double, store, tiles, wgmma)
