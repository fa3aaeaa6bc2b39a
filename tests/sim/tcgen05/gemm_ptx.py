"""A complete NVFP4 kernel in PTX: two MMAs of one tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.sim.ptx_case import run_ptx
from tests.sim.tcgen05.places import E2M1, k_major

GEMM = """
// One warp: 32 columns of scale factors and 128 x 32 of accumulator, A, B and scale factors from global memory.
mov.u32 %r0, smem;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 64;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
mov.u32 %r9, %tid.x;
setp.eq.u32 %p1, %r9, 0;
add.u32 %r1, %r0, 8;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0;
ld.shared.b32 %r2, [%r0];
// Copy 1,024 + 4,096 + 1,024 bytes from p0 to smem + 1,024, four bytes a thread.
shl.b32 %r3, %r9, 2;
mov.u32 %r4, 0;
LOOP:
add.u32 %r5, %r3, %r4;
cvt.u64.u32 %rd1, %r5;
add.u64 %rd2, %rd100, %rd1;
ld.global.b32 %r6, [%rd2];
add.u32 %r7, %r5, %r0;
st.shared.b32 [%r7+1024], %r6;
add.u32 %r4, %r4, 128;
setp.lt.u32 %p2, %r4, 21504;
@%p2 bra LOOP;
bar.sync 0;
fence.proxy.async.shared::cta;
add.u32 %r10, %r0, 1024;
shr.u32 %r10, %r10, 4;
cvt.u64.u32 %rd3, %r10;
or.b64 %rd4, %rd3, 0x4000404000010000;  // A: 128B swizzle, SBO 1,024
add.u64 %rd5, %rd4, 1024;  // B, 16,384 bytes on
mov.b64 %rd6, 0x0000400800010000;  // scale factors: no swizzle, SBO 128
add.u32 %r11, %r0, 21504;
shr.u32 %r11, %r11, 4;
cvt.u64.u32 %rd7, %r11;
or.b64 %rd6, %rd6, %rd7;
add.u64 %rd8, %rd6, 32;
add.u32 %r12, %r2, 32;
add.u32 %r13, %r2, 36;
@!%p1 bra WAIT;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r12], %rd6;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r13], %rd8;
mov.u32 %r14, 0x08080480;
setp.ne.u32 %p3, %r9, %r9;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.collector::a::discard
  [%r2], %rd4, %rd5, %r14, [%r12], [%r13], %p3;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%r2], %rd4, %rd5, %r14, [%r12], [%r13], 1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r1], 0;
@!%p4 bra WAIT;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r2+MORE];
tcgen05.wait::ld.sync.aligned;
shl.b32 %r15, %r9, 3;
cvt.u64.u32 %rd9, %r15;
add.u64 %rd9, %rd101, %rd9;
st.global.v2.b32 [%rd9], {%r20, %r21};
bar.sync 0;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;
"""


def gemm(**changes: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Run the kernel; return its output, the exact product and the run."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 16, (128, 64), dtype=np.uint8), rng.integers(0, 16, (32, 64), dtype=np.uint8)
    sfa, sfb = rng.integers(0x30, 0x40, (128, 4), dtype=np.uint8), rng.integers(0x30, 0x40, (128, 4), dtype=np.uint8)
    memory = np.zeros(21504, np.uint8)
    for codes, start in ((a, 0), (b, 16384)):
        packed = codes[:, 0::2] | codes[:, 1::2] << 4
        for r in range(codes.shape[0]):
            for k in range(32):
                memory[start + k_major(r, k, swizzle=2, stride=1024)] = packed[r, k]
    for codes, start in ((sfa, 20480), (sfb, 20992)):
        for r in range(128):
            memory[start + r % 32 * 16 + r // 32 * 4 : start + r % 32 * 16 + r // 32 * 4 + 4] = codes[r]
    body = changes.pop("body", GEMM).replace("MORE", "0")
    ran = run_ptx(
        body, buffers={"memory": memory, "out": np.zeros(64, np.float32)}, block=(32, 1, 1), shared=24576, **changes
    )
    values = [E2M1[codes] for codes in (a, b)]
    factors = [np.repeat((8 + (s & 7)) * 2.0 ** ((s >> 3).astype(int) - 10), 16, axis=1) for s in (sfa, sfb[:32])]
    want = 2 * (values[0] * factors[0]) @ (values[1] * factors[1]).T
    return ran["out"].reshape(32, 2), want, ran


COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];"


def by_lane(lane: int) -> str:
    """The kernel with the commit in a fixed lane, and everything else in the elected one, which is lane 0."""
    moved = f"WAIT:\nmov.u32 %r30, %laneid; setp.eq.u32 %p5, %r30, {lane};\n@%p5 {COMMIT}"
    return GEMM.replace(COMMIT, "").replace("WAIT:\n", moved + "\n", 1)
