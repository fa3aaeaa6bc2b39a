"""Cluster launch control used directly, and warp-level MMA; PTX ISA, "clusterlaunchcontrol" and "mma.sync"."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import utils
from cutlass.cute import arch

from .blocks import block_feature

CTAS = 9
THREADS = 64


@cute.jit
def cancelled_clusters(x: cute.Tensor, y: cute.Tensor) -> None:
    """Each CTA works on its own tile and then on those of CTAs that it could cancel: every tile exactly once."""
    thread, _, _ = arch.thread_idx()
    block_x, block_y, _ = arch.block_idx()
    smem = utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    response = smem.allocate_tensor(cutlass.Int32, cute.make_layout(4), byte_alignment=16)
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
    arch.mbarrier_init_fence()
    arch.sync_threads()
    tile = block_x + 3 * block_y
    valid = cutlass.Int32(1)
    parity = cutlass.Int32(0)
    while valid != 0:
        if thread == 0:
            arch.mbarrier_arrive_and_expect_tx(barrier, 16)
            arch.issue_clc_query(barrier, response.iterator)
        arch.atomic_add(y.iterator + (tile * THREADS + thread), x[tile, thread] + 1)
        arch.mbarrier_wait(barrier, parity)
        parity ^= 1
        next_x, next_y, _next_z, valid = arch.clc_response(response.iterator)
        arch.fence_proxy("async.shared", space="cta")
        tile = next_x + 3 * next_y
        arch.sync_threads()


@cute.jit
def warp_mma(x: cute.Tensor, y: cute.Tensor) -> None:
    """A 16 x 8 x 16 product of fp16 in one warp: ``x`` is A over B, both K-major; accumulated twice."""
    lane = arch.lane_idx()
    op = cute.nvgpu.warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    tiled = cute.make_tiled_mma(op)
    part = tiled.get_slice(lane)
    a = cute.make_tensor(x.iterator, cute.make_layout((16, 16), stride=(16, 1)))
    b = cute.make_tensor(x.iterator + 256, cute.make_layout((8, 16), stride=(16, 1)))
    gA, gB, gC = part.partition_A(a), part.partition_B(b), part.partition_C(y)
    rA, rB = tiled.make_fragment_A(gA), tiled.make_fragment_B(gB)
    rC = cute.make_rmem_tensor(gC.shape, cutlass.Float32)
    cute.autovec_copy(gA, rA)
    cute.autovec_copy(gB, rB)
    rC.fill(0.5)
    cute.gemm(tiled, rC, rA, rB, rC)
    cute.gemm(tiled, rC, rA, rB, rC)
    cute.autovec_copy(rC, gC)


FEATURES = (
    block_feature(
        "clc_queries",
        cancelled_clusters,
        lambda x: x + 1,
        shape=(CTAS, THREADS),
        grid=(3, 3, 1),
        block=(THREADS, 1, 1),
        opcodes=("clusterlaunchcontrol.try_cancel.async", "clusterlaunchcontrol.query_cancel.is_canceled"),
    ),
    block_feature(
        "warp_mma",
        warp_mma,
        lambda x: 2 * (x[:16].astype(np.float64) @ x[16:].astype(np.float64).T) + 0.5,
        shape=(24, 16),
        out_shape=(16, 8),
        dtype=np.float16,
        out_dtype=np.float32,
        draw=lambda random, shape: random.integers(-9, 10, shape),
        block=(32, 1, 1),
        opcodes=("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",),
    ),
)
