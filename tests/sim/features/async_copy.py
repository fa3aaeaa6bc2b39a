"""cp.async with groups and with mbarriers, and bulk copies without tensor maps; PTX ISA, "cp.async"."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import pipeline, utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync

from .blocks import block_feature

TILE = 512
TILES = 6
STAGES = 3


def tiled_cp_async(threads: int) -> cute.TiledCopy:
    """A copy of TILE floats by ``threads`` threads, 16 bytes each at a time."""
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=128)
    return cute.make_tiled_copy_tv(atom, cute.make_layout(threads), cute.make_layout(4))


@cute.jit
def grouped(x: cute.Tensor, y: cute.Tensor) -> None:
    """A ring of three stages filled by cp.async groups, two in flight; the ring wraps twice."""
    thread, _, _ = arch.thread_idx()
    smem = utils.SmemAllocator()
    ring = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, STAGES)), byte_alignment=16)
    thread_copy = tiled_cp_async(128).get_slice(thread)
    copy = tiled_cp_async(128)
    for i in cutlass.range_constexpr(STAGES - 1):
        cute.copy(copy, thread_copy.partition_S(x[i, None]), thread_copy.partition_D(ring[None, i]))
        arch.cp_async_commit_group()
    total = cutlass.Float32(0)
    for i in cutlass.range_constexpr(TILES):
        arch.cp_async_wait_group(STAGES - 2)
        arch.sync_threads()
        for j in cutlass.range_constexpr(TILE // 128):
            total = total * 2.0 + ring[(TILE // 128) * (127 - thread) + j, i % STAGES]
        if cutlass.const_expr(i + STAGES - 1 < TILES):
            following = i + STAGES - 1
            cute.copy(
                copy,
                thread_copy.partition_S(x[following, None]),
                thread_copy.partition_D(ring[None, following % STAGES]),
            )
        arch.cp_async_commit_group()
    y[thread] = total


def grouped_reference(x: np.ndarray) -> np.ndarray:
    total = np.zeros(128)
    for tile in x:
        for j in range(TILE // 128):
            total = total * 2 + tile[(TILE // 128) * (127 - np.arange(128)) + j]
    return total


@cute.jit
def signalled(x: cute.Tensor, y: cute.Tensor) -> None:
    """``PipelineCpAsync``: a warp's cp.async arrive at an mbarrier (noinc) on which other warps wait."""
    thread, _, _ = arch.thread_idx()
    warp = arch.make_warp_uniform(arch.warp_idx())
    smem = utils.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
    ring = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, STAGES)), byte_alignment=16)
    pipe = pipeline.PipelineCpAsync.create(
        barrier_storage=barriers,
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 96),
    )
    if warp == 0:
        copy = tiled_cp_async(32)
        thread_copy = copy.get_slice(thread)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for i in cutlass.range(TILES, unroll=1):
            pipe.producer_acquire(state)
            cute.copy(copy, thread_copy.partition_S(x[i, None]), thread_copy.partition_D(ring[None, state.index]))
            pipe.producer_commit(state)
            state.advance()
        pipe.producer_tail(state)
    else:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        total = cutlass.Float32(0)
        for _ in cutlass.range(TILES, unroll=1):
            pipe.consumer_wait(state)
            total = total * 2.0 + ring[5 * (thread - 32), state.index]
            pipe.consumer_release(state)
            state.advance()
        y[thread - 32] = total


def signalled_reference(x: np.ndarray) -> np.ndarray:
    total = np.zeros(96)
    for tile in x:
        total = total * 2 + tile[5 * np.arange(96)]
    return total


@cute.jit
def zero_filled(x: cute.Tensor, y: cute.Tensor) -> None:
    """Predicated cp.async: what lies outside arrives as zeros (src-size 0), 4 bytes at a time."""
    thread, _, _ = arch.thread_idx()
    smem = utils.SmemAllocator()
    shared = smem.allocate_tensor(cutlass.Float32, cute.make_layout(128), byte_alignment=16)
    shared[thread] = 77.0
    arch.sync_threads()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    predicate = cute.make_rmem_tensor(1, cutlass.Boolean)
    predicate[0] = thread < 100
    source = cute.make_tensor(x.iterator + thread, cute.make_layout(1))
    target = cute.make_tensor(shared.iterator + thread, cute.make_layout(1))
    cute.copy(atom, source, target, pred=predicate)
    arch.cp_async_commit_group()
    arch.cp_async_wait_group(0)
    arch.sync_threads()
    y[thread] = shared[127 - thread]


@cute.jit
def bulk(x: cute.Tensor, y: cute.Tensor) -> None:
    """cp.async.bulk to shared memory under an mbarrier, and back under a bulk group."""
    thread, _, _ = arch.thread_idx()
    smem = utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    shared = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, 2)), byte_alignment=128)
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
    arch.mbarrier_init_fence()
    arch.sync_threads()
    load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32)
    store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Float32)
    for i in cutlass.range(TILES, unroll=1):
        # Unlike a copy with a tensor map, these are issued by every thread that gets here.
        if thread == 0:
            arch.mbarrier_arrive_and_expect_tx(barrier, TILE * 4)
            source, target = cpasync.group_bulk_copy_modes(x[i, None], shared[None, i % 2])
            cute.copy(load, source, target, mbar_ptr=barrier)
        arch.mbarrier_wait(barrier, i % 2)
        for j in cutlass.range_constexpr(TILE // 128):
            shared[j * 128 + thread, i % 2] = shared[j * 128 + thread, i % 2] * 2.0 + 1.0
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if thread == 0:
            source, target = cpasync.group_bulk_copy_modes(shared[None, i % 2], y[i, None])
            cute.copy(store, source, target)
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(1, read=True)
            if i == TILES - 1:
                arch.cp_async_bulk_wait_group(0)
        arch.sync_threads()


FEATURES = (
    block_feature(
        "cp_async_groups",
        grouped,
        grouped_reference,
        shape=(TILES, TILE),
        out_shape=(128,),
        dtype=np.float32,
        draw=lambda random, shape: random.integers(0, 2, shape),
        opcodes=("cp.async.c[ag].shared.global", "cp.async.commit_group", r"cp.async.wait_group\s+1"),
    ),
    block_feature(
        "cp_async_mbarrier",
        signalled,
        signalled_reference,
        shape=(TILES, TILE),
        out_shape=(96,),
        dtype=np.float32,
        draw=lambda random, shape: random.integers(-9, 10, shape),
        opcodes=("cp.async.c[ag].shared.global", "cp.async.mbarrier.arrive.noinc"),
    ),
    block_feature(
        "cp_async_zero_fill",
        zero_filled,
        lambda x: np.where(np.arange(128) < 100, np.resize(x, 128), 0)[::-1],
        shape=(100,),
        out_shape=(128,),
        dtype=np.float32,
        opcodes=("cp.async.ca.shared.global",),
    ),
    block_feature(
        "bulk_copy",
        bulk,
        lambda x: x * 2 + 1,
        shape=(TILES, TILE),
        dtype=np.float32,
        opcodes=(
            "cp.async.bulk.shared::(cta|cluster).global.mbarrier::complete_tx::bytes",
            "cp.async.bulk.global.shared::cta.bulk_group",
            "cp.async.bulk.commit_group",
            r"cp.async.bulk.wait_group.read\s+1",
            "fence.proxy.async.shared::cta",
        ),
        needs=("cute.nvgpu.cpasync.CopyBulkG2SOp", "cute.nvgpu.cpasync.CopyBulkS2GOp"),
    ),
)
