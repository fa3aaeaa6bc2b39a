"""CTAs that work on one result: split-K with atomics, flags as stream-K uses them, a grid barrier, a last-block sum.

PTX ISA, "Memory consistency model": a release by one CTA that an acquire of another reads orders what lies before it.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import utils
from cutlass.cute import arch

from .blocks import block_feature

CTAS = 6
THREADS = 64


@cute.jit
def split_sum(x: cute.Tensor, y: cute.Tensor) -> None:
    """Each CTA adds its share of every column: float atomics on whole numbers, so that the order does not matter."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    total = cutlass.Float32(0)
    for i in cutlass.range(4, unroll=1):
        total += x[block * 4 + i, thread]
    arch.atomic_add((y.iterator + thread).llvm_ptr, total)


@cute.jit
def every_atomic(x: cute.Tensor, y: cute.Tensor) -> None:
    """Atomics on global memory: each kind, all scopes; the returned values are used."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    value = x[block, thread]
    ticket = arch.atomic_add(y.iterator, cutlass.Int32(1), sem="relaxed", scope="gpu")
    arch.atomic_add(y.iterator + 1, ticket, sem="acq_rel", scope="gpu")
    arch.atomic_max(y.iterator + 2, value)
    arch.atomic_min(y.iterator + 3, value)
    arch.atomic_or(y.iterator + 4, value, scope="sys")
    arch.atomic_xor(y.iterator + 5, value, scope="gpu")
    if ticket == 17:
        arch.atomic_exch(y.iterator + 6, cutlass.Int32(4711))
    if arch.atomic_cas(y.iterator + 7, cmp=ticket - ticket, val=cutlass.Int32(3)) == 0:
        arch.atomic_and(y.iterator + 8, cutlass.Int32(12))


def every_atomic_reference(x: np.ndarray) -> np.ndarray:
    count = x.size
    folds = [max(15, x.max()), min(15, x.min()), 15 | np.bitwise_or.reduce(x, axis=None)]
    folds.append(15 ^ np.bitwise_xor.reduce(x, axis=None))
    # The output begins as 15 everywhere: tickets are 15 .. 15 + count - 1, and no compare-and-swap finds 0.
    return np.array([15 + count, 15 + count * (count - 1) // 2 + 15 * count, *folds, 4711, 15, 15])


@cute.jit
def chain_of_flags(x: cute.Tensor, y: cute.Tensor) -> None:
    """CTA b waits for the flag of CTA b - 1, adds its part to the partial sums and sets its own flag.

    ``y`` is (CTAS + 1, THREADS): the row behind the partial sums holds the flags.
    """
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    flags = y.iterator + CTAS * THREADS
    partial = cutlass.Int32(0)
    if block > 0:
        if thread == 0:
            ready = cutlass.Int32(0)
            while ready == 0:
                ready = arch.load((flags + (block - 1)).llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
        arch.sync_threads()
        partial = y[block - 1, thread]
    y[block, thread] = partial * 2 + x[block, thread]
    arch.sync_threads()
    if thread == 0:
        arch.store((flags + block).llvm_ptr, cutlass.Int32(1), sem="release", scope="gpu")


@cute.jit
def chain_backwards(x: cute.Tensor, y: cute.Tensor) -> None:
    """The same chain, in which the *first* CTA of the grid waits for all others."""
    thread, _, _ = arch.thread_idx()
    index, _, _ = arch.block_idx()
    block = CTAS - 1 - index
    flags = y.iterator + CTAS * THREADS
    partial = cutlass.Int32(0)
    if block > 0:
        if thread == 0:
            while arch.load((flags + (block - 1)).llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu") == 0:
                pass
        arch.sync_threads()
        partial = y[block - 1, thread]
    y[block, thread] = partial * 2 + x[block, thread]
    arch.fence_acq_rel_gpu()
    arch.sync_threads()
    if thread == 0:
        arch.atomic_exch(flags + block, cutlass.Int32(1), sem="release", scope="gpu")


def chain_reference(x: np.ndarray) -> np.ndarray:
    rows, partial = [], np.zeros(THREADS, np.int64)
    for row in x:
        partial = partial * 2 + row
        rows.append(partial)
    flags = (np.arange(THREADS) < CTAS).astype(np.int64)
    return np.stack([*rows, flags])


@cute.jit
def grid_barrier(x: cute.Tensor, y: cute.Tensor) -> None:
    """All CTAs meet three times at a counter in global memory; each round reads what the neighbour wrote before."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    counter = y.iterator + CTAS * THREADS
    value = x[block, thread]
    for i in cutlass.range(3, unroll=1):
        y[block, thread] = value
        arch.sync_threads()
        if thread == 0:
            arch.atomic_add(counter, cutlass.Int32(1), sem="release", scope="gpu")
            arrived = cutlass.Int32(0)
            while arrived < CTAS * (2 * i + 1):
                arrived = arch.load(counter.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
        arch.sync_threads()
        value = value + arch.load(
            (y.iterator + ((block + 1) % CTAS) * THREADS + thread).llvm_ptr, cutlass.Int32, cop="cg"
        )
        # Nobody writes before all have read.
        arch.sync_threads()
        if thread == 0:
            arch.atomic_add(counter, cutlass.Int32(1), sem="acq_rel", scope="gpu")
            arrived = cutlass.Int32(0)
            while arrived < CTAS * (2 * i + 2):
                arrived = arch.load(counter.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
        arch.sync_threads()
    y[block, thread] = value


def grid_barrier_reference(x: np.ndarray) -> np.ndarray:
    value = x.astype(np.int64)
    for _ in range(3):
        value = value + np.roll(value, -1, axis=0)
    return np.concatenate([value, np.where(np.arange(THREADS) == 0, 6 * CTAS, 0)[None]])


@cute.jit
def last_block(x: cute.Tensor, y: cute.Tensor) -> None:
    """Every CTA leaves a partial sum; whichever takes the last ticket adds them all up."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    smem = utils.SmemAllocator()
    ticket = smem.allocate_tensor(cutlass.Int32, cute.make_layout(1), byte_alignment=16)
    counter = y.iterator + CTAS * THREADS
    y[block, thread] = x[block, thread] * 2
    arch.fence_acq_rel_gpu()
    arch.sync_threads()
    if thread == 0:
        ticket[0] = arch.atomic_add(counter, cutlass.Int32(1), sem="acq_rel", scope="gpu")
    arch.sync_threads()
    if ticket[0] == CTAS - 1:
        arch.fence_acq_rel_gpu()
        total = cutlass.Int32(0)
        for i in cutlass.range(CTAS, unroll=1):
            total += y[i, thread]
        y[CTAS + 1, thread] = total


def last_block_reference(x: np.ndarray) -> np.ndarray:
    counter = np.where(np.arange(THREADS) == 0, CTAS, 0)
    return np.concatenate([x * 2, counter[None], (x * 2).sum(0, keepdims=True)])


FEATURES = (
    block_feature(
        "split_k_atomics",
        split_sum,
        lambda x: x.sum(axis=0),
        shape=(4 * CTAS, THREADS),
        out_shape=(THREADS,),
        dtype=np.float32,
        grid=(CTAS, 1, 1),
        block=(THREADS, 1, 1),
        opcodes=(r"(atom|red).*add.*f32",),
    ),
    block_feature(
        "global_atomics",
        every_atomic,
        every_atomic_reference,
        shape=(CTAS, THREADS),
        out_shape=(9,),
        fill=15,
        grid=(CTAS, 1, 1),
        block=(THREADS, 1, 1),
        opcodes=("atom.*add", "(atom|red).*max", "(atom|red).*xor", "atom.*cas", "(atom|red).*acq_rel"),
    ),
    block_feature(
        "stream_k_flags",
        chain_of_flags,
        chain_reference,
        shape=(CTAS, THREADS),
        out_shape=(CTAS + 1, THREADS),
        grid=(CTAS, 1, 1),
        block=(THREADS, 1, 1),
        opcodes=("ld.acquire.gpu", "st.release.gpu"),
    ),
    block_feature(
        "stream_k_flags_backwards",
        chain_backwards,
        chain_reference,
        shape=(CTAS, THREADS),
        out_shape=(CTAS + 1, THREADS),
        grid=(CTAS, 1, 1),
        block=(THREADS, 1, 1),
        opcodes=("ld.acquire.gpu", "atom.*exch", "fence.acq_rel.gpu"),
    ),
    block_feature(
        "grid_barrier",
        grid_barrier,
        grid_barrier_reference,
        shape=(CTAS, THREADS),
        out_shape=(CTAS + 1, THREADS),
        grid=(CTAS, 1, 1),
        block=(THREADS, 1, 1),
        opcodes=("ld.acquire.gpu", "ld.*cg"),
    ),
    block_feature(
        "last_block_sum",
        last_block,
        last_block_reference,
        shape=(CTAS, THREADS),
        out_shape=(CTAS + 2, THREADS),
        grid=(CTAS, 1, 1),
        block=(THREADS, 1, 1),
        opcodes=("atom.*acq_rel.*add", "fence.acq_rel.gpu"),
    ),
)
