"""mbarriers between warps, named barriers and shared-memory atomics; PTX ISA, "mbarrier" and "bar"/"barrier"."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import pipeline, utils
from cutlass.cute import arch

from .blocks import block_feature

ROUNDS = 7


@cute.jit
def ping_pong(x: cute.Tensor, y: cute.Tensor) -> None:
    """Two warps hand one buffer to and fro; each round uses the next phase of both mbarriers."""
    thread, _, _ = arch.thread_idx()
    warp = arch.make_warp_uniform(arch.warp_idx())
    lane = arch.lane_idx()
    smem = utils.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2)
    buffer = smem.allocate_tensor(cutlass.Int32, cute.make_layout(32), byte_alignment=16)
    ping, pong = barriers, barriers + 1
    if thread == 0:
        arch.mbarrier_init(ping, 32)
        arch.mbarrier_init(pong, 32)
    arch.mbarrier_init_fence()
    arch.sync_threads()
    if warp == 0:
        buffer[lane] = x[lane]
        arch.mbarrier_arrive(ping)
        for i in cutlass.range(ROUNDS, unroll=1):
            arch.mbarrier_wait(pong, i & 1)
            buffer[lane] = buffer[lane] * 2
            arch.mbarrier_arrive(ping)
        arch.mbarrier_wait(pong, ROUNDS & 1)
        y[lane] = buffer[lane]
    else:
        for i in cutlass.range(ROUNDS + 1, unroll=1):
            arch.mbarrier_wait(ping, i & 1)
            buffer[lane] = buffer[lane] + lane
            arch.mbarrier_arrive(pong)


def ping_pong_reference(x: np.ndarray) -> np.ndarray:
    lanes = np.arange(32)
    value = x + lanes
    for _ in range(ROUNDS):
        value = value * 2 + lanes
    return value


@cute.jit
def ring(x: cute.Tensor, y: cute.Tensor) -> None:
    """``PipelineAsync``: one warp fills a ring of two stages that another empties, 8 rounds."""
    warp = arch.make_warp_uniform(arch.warp_idx())
    lane = arch.lane_idx()
    smem = utils.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 4)
    stages = smem.allocate_tensor(cutlass.Int32, cute.make_layout((32, 2)), byte_alignment=16)
    producer, consumer = pipeline.PipelineAsync.create(
        barrier_storage=barriers,
        num_stages=2,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32),
    ).make_participants()
    if warp == 0:
        for i in cutlass.range(8, unroll=1):
            empty = producer.acquire_and_advance()
            stages[lane, empty.index] = x[i, lane]
            empty.commit()
        producer.tail()
    if warp == 1:
        total = cutlass.Int32(0)
        for _ in cutlass.range(8, unroll=1):
            full = consumer.wait_and_advance()
            total = total * 3 + stages[31 - lane, full.index]
            full.release()
        y[lane] = total


def ring_reference(x: np.ndarray) -> np.ndarray:
    total = np.zeros(32, np.int64)
    for row in x:
        total = total * 3 + row[::-1]
    return total


@cute.jit
def named(x: cute.Tensor, y: cute.Tensor) -> None:
    """Producers arrive, consumers sync: two named barriers of 64 threads between four warps, and one of all."""
    thread, _, _ = arch.thread_idx()
    warp = arch.make_warp_uniform(arch.warp_idx())
    smem = utils.SmemAllocator()
    buffer = smem.allocate_tensor(cutlass.Int32, cute.make_layout(128), byte_alignment=16)
    for i in cutlass.range(3, unroll=1):
        if warp < 2:
            buffer[thread] = x[i, thread]
            arch.barrier_arrive(barrier_id=1 + warp, number_of_threads=64)
        else:
            arch.barrier(barrier_id=warp - 1, number_of_threads=64)
            buffer[thread] = buffer[thread - 64] + 1
        arch.barrier(barrier_id=3, number_of_threads=128)
        y[i, thread] = buffer[127 - thread]
        arch.sync_threads()


def named_reference(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, x + 1], axis=1)[:, ::-1]


@cute.jit
def shared_atomics(x: cute.Tensor, y: cute.Tensor) -> None:
    """A histogram in shared memory, and every kind of atomic on it; results do not depend on the order."""
    thread, _, _ = arch.thread_idx()
    smem = utils.SmemAllocator()
    bins = smem.allocate_tensor(cutlass.Int32, cute.make_layout(16), byte_alignment=16)
    if thread < 16:
        bins[thread] = cutlass.Int32(0)
    if thread == 13:
        bins[thread] = cutlass.Int32(-1)
    arch.sync_threads()
    value = x[thread]
    arch.atomic_add(bins.iterator + (value & 7), cutlass.Int32(1))
    arch.atomic_max(bins.iterator + 8, value)
    arch.atomic_min(bins.iterator + 9, value)
    arch.atomic_or(bins.iterator + 10, value)
    arch.atomic_xor(bins.iterator + 11, value)
    if thread == 77:
        y[17] = arch.atomic_exch(bins.iterator + 12, value)
    arch.atomic_and(bins.iterator + 13, value)
    # One thread of all wins.
    if arch.atomic_cas(bins.iterator + 14, cmp=cutlass.Int32(0), val=cutlass.Int32(9)) == 0:
        arch.atomic_add(bins.iterator + 15, cutlass.Int32(1))
    arch.sync_threads()
    if thread < 16:
        y[thread] = bins[thread]
    if thread == 16:
        y[16] = cutlass.Int32(5)


def shared_atomics_reference(x: np.ndarray) -> np.ndarray:
    bins = np.bincount(x & 7, minlength=8).tolist()
    folds = [max(0, x.max()), min(0, x.min()), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x)]
    return np.array([*bins, *folds, x[77], np.bitwise_and.reduce(x), 9, 1, 5, 0])


FEATURES = (
    block_feature(
        "mbarrier_ping_pong",
        ping_pong,
        ping_pong_reference,
        shape=(32,),
        block=(64, 1, 1),
        opcodes=("mbarrier.init.shared", "mbarrier.arrive", "mbarrier.try_wait.parity", "fence.*mbarrier_init"),
    ),
    block_feature(
        "async_pipeline",
        ring,
        ring_reference,
        shape=(8, 32),
        out_shape=(32,),
        block=(64, 1, 1),
        draw=lambda random, shape: random.integers(-9, 10, shape),
        opcodes=("mbarrier.arrive", "mbarrier.try_wait.parity"),
    ),
    block_feature(
        "named_barriers",
        named,
        named_reference,
        shape=(3, 64),
        out_shape=(3, 128),
        opcodes=(r"\b(bar|barrier)(.cta)?.arrive", r"\b(bar|barrier)(.cta)?.sync"),
    ),
    block_feature(
        "shared_atomics",
        shared_atomics,
        shared_atomics_reference,
        shape=(128,),
        out_shape=(18,),
        opcodes=(
            "atom.*shared.*add",
            "atom.*shared.*max",
            "atom.*shared.*xor",
            "atom.*shared.*cas",
            "atom.*shared.*exch",
        ),
    ),
)
