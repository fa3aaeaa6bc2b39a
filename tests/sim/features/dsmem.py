"""Distributed shared memory: reads, writes, remote arrivals, asynchronous stores; PTX ISA, "mapa", "st.async"."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import utils
from cutlass.cute import arch

from .blocks import block_feature
from .perthread import ptx32

CTAS = 4
THREADS = 32


@cute.jit
def read_and_write(x: cute.Tensor, y: cute.Tensor) -> None:
    """Each CTA reads its right neighbour's shared memory, then writes into its left neighbour's."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    rank = arch.block_idx_in_cluster()
    smem = utils.SmemAllocator()
    mine = smem.allocate_tensor(cutlass.Int32, cute.make_layout(2 * THREADS), byte_alignment=16)
    mine[thread] = x[block, thread]
    arch.cluster_arrive()
    arch.cluster_wait()
    right, left = (rank + 1) % CTAS, (rank + CTAS - 1) % CTAS
    address = (mine.iterator + thread).toint()
    got = ptx32("{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, $2; ld.shared::cluster.u32 $0, [a]; }", address, right)
    # What a neighbour has still to read must not be added to.
    arch.cluster_arrive()
    arch.cluster_wait()
    ptx32(
        "{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, $2; st.shared::cluster.u32 [a+128], $3; mov.b32 $0, 0; }",
        address,
        left,
        got * 10 + rank,
    )
    ptx32(
        "{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, $2; atom.shared::cluster.add.u32 $0, [a], 1000000; }",
        address,
        left,
    )
    arch.cluster_arrive()
    arch.cluster_wait()
    y[block, thread] = mine[thread]
    y[block, THREADS + thread] = mine[THREADS + thread]


def read_and_write_reference(x: np.ndarray) -> np.ndarray:
    clusters = x.reshape(-1, CTAS, THREADS)
    rank = np.arange(CTAS)[:, None]
    written_by_right = np.roll(clusters, -2, axis=1) * 10 + (rank + 1) % CTAS
    return np.concatenate([clusters + 1000000, written_by_right], axis=2).reshape(-1, 2 * THREADS)


@cute.jit
def remote_arrivals(x: cute.Tensor, y: cute.Tensor) -> None:
    """Every CTA writes a row into CTA 0 and arrives at its mbarrier; CTA 0 adds the rows up."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    rows = smem.allocate_tensor(cutlass.Int32, cute.make_layout((THREADS, CTAS)), byte_alignment=16)
    if thread == 0:
        arch.mbarrier_init(barrier, CTAS * THREADS)
    arch.mbarrier_init_fence()
    arch.cluster_arrive_relaxed()
    arch.cluster_wait()
    address = (rows.iterator + rank * THREADS + thread).toint()
    for i in cutlass.range(3, unroll=1):
        ptx32(
            "{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, 0; st.shared::cluster.u32 [a], $2; mov.b32 $0, 0; }",
            address,
            x[block, thread] + i,
        )
        arch.fence_acq_rel_cluster()
        arch.mbarrier_arrive(barrier, 0)
        if rank == 0:
            arch.mbarrier_wait(barrier, i % 2)
            total = cutlass.Int32(0)
            for j in cutlass.range_constexpr(CTAS):
                total = total * 3 + rows[thread, j]
            y[block // CTAS, i, thread] = total
        # Rows are written again only when they have been read.
        arch.cluster_arrive()
        arch.cluster_wait()


def remote_arrivals_reference(x: np.ndarray) -> np.ndarray:
    clusters = x.reshape(-1, CTAS, THREADS)
    weights = 3 ** np.arange(CTAS - 1, -1, -1)[:, None]
    return np.stack([((clusters + i) * weights).sum(axis=1) for i in range(3)], axis=1)


@cute.jit
def asynchronous_stores(x: cute.Tensor, y: cute.Tensor) -> None:
    """st.async to the other CTA, counted in bytes by its mbarrier."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    row = smem.allocate_tensor(cutlass.Int32, cute.make_layout(THREADS), byte_alignment=16)
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_arrive_and_expect_tx(barrier, 4 * THREADS)
    arch.mbarrier_init_fence()
    arch.cluster_arrive()
    arch.cluster_wait()
    ptx32(
        "{ .reg .b32 a, b; mapa.shared::cluster.u32 a, $1, $3; mapa.shared::cluster.u32 b, $2, $3; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [a], $4, [b]; mov.b32 $0, 0; }",
        (row.iterator + thread).toint(),
        barrier.toint(),
        rank ^ 1,
        x[block, thread] * 7,
    )
    arch.mbarrier_wait(barrier, 0)
    y[block, thread] = row[31 - thread]
    arch.cluster_arrive()
    arch.cluster_wait()


@cute.jit
def stores_by_name(x: cute.Tensor, y: cute.Tensor) -> None:
    """The same with the DSL's own function: four words at a time."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    row = smem.allocate_tensor(cutlass.Int32, cute.make_layout((4, THREADS // 4)), byte_alignment=16)
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_arrive_and_expect_tx(barrier, 4 * THREADS)
    arch.mbarrier_init_fence()
    arch.cluster_arrive()
    arch.cluster_wait()
    if thread < THREADS // 4:
        words = tuple(x[block, thread * 4 + i] * 7 for i in range(4))
        arch.store_async_dsmem(row[None, thread].iterator, words, barrier, rank ^ 1)
    arch.mbarrier_wait(barrier, 0)
    last = 31 - thread
    y[block, thread] = row[last % 4, last // 4]
    arch.cluster_arrive()
    arch.cluster_wait()


@cute.jit
def bulk_between(x: cute.Tensor, y: cute.Tensor) -> None:
    """A bulk copy from the own shared memory to that of the other CTA."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    mine = smem.allocate_tensor(cutlass.Int32, cute.make_layout(THREADS), byte_alignment=128)
    theirs = smem.allocate_tensor(cutlass.Int32, cute.make_layout(THREADS), byte_alignment=128)
    mine[thread] = x[block, thread] * 7
    if thread == 0:
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_arrive_and_expect_tx(barrier, 4 * THREADS)
    arch.mbarrier_init_fence()
    arch.fence_proxy("async.shared", space="cta")
    arch.cluster_arrive()
    arch.cluster_wait()
    if thread == 0:
        ptx32(
            "{ .reg .b32 a, b; mapa.shared::cluster.u32 a, $1, $4; mapa.shared::cluster.u32 b, $3, $4; "
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [a], [$2], 128, [b]; "
            "mov.b32 $0, 0; }",
            theirs.iterator.toint(),
            mine.iterator.toint(),
            barrier.toint(),
            rank ^ 1,
        )
    arch.mbarrier_wait(barrier, 0)
    y[block, thread] = theirs[31 - thread]
    arch.cluster_arrive()
    arch.cluster_wait()


def asynchronous_stores_reference(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 2, THREADS)[:, ::-1, ::-1].reshape(-1, THREADS) * 7


FEATURES = (
    block_feature(
        "dsmem",
        read_and_write,
        read_and_write_reference,
        shape=(2 * CTAS, THREADS),
        out_shape=(2 * CTAS, 2 * THREADS),
        grid=(2 * CTAS, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(CTAS, 1, 1),
        opcodes=(
            "mapa.shared::cluster",
            "ld.shared::cluster",
            "st.shared::cluster",
            "atom.shared::cluster",
            "barrier.cluster",
        ),
    ),
    block_feature(
        "remote_arrive",
        remote_arrivals,
        remote_arrivals_reference,
        shape=(2 * CTAS, THREADS),
        out_shape=(2, 3, THREADS),
        grid=(2 * CTAS, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(CTAS, 1, 1),
        opcodes=("mapa", "mbarrier.arrive.*shared::cluster", "barrier.cluster.arrive.relaxed", "fence.acq_rel.cluster"),
    ),
    block_feature(
        "st_async",
        asynchronous_stores,
        asynchronous_stores_reference,
        shape=(4, THREADS),
        grid=(4, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(2, 1, 1),
        opcodes=("st.async.*shared::cluster.mbarrier::complete_tx::bytes",),
    ),
    block_feature(
        "st_async_v4",
        stores_by_name,
        asynchronous_stores_reference,
        shape=(4, THREADS),
        grid=(4, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(2, 1, 1),
        opcodes=("st.async.*shared::cluster.mbarrier::complete_tx::bytes.v4",),
        needs=("cute.arch.store_async_dsmem",),
    ),
    block_feature(
        "bulk_dsmem",
        bulk_between,
        asynchronous_stores_reference,
        shape=(4, THREADS),
        grid=(4, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(2, 1, 1),
        opcodes=("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",),
    ),
)
