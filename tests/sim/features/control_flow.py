"""Divergence: loops of different trip counts per lane, nested branches, spins, early ends, many live registers."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass.cute import arch

from .blocks import block_feature
from .perthread import ptx32, thread_feature


@cute.jit
def collatz(x: cute.Tensor, y: cute.Tensor) -> None:
    """Steps to 1, and the largest number on the way: up to 178 rounds, another number in each lane."""
    n = cutlass.Int32(x[0])
    steps = cutlass.Int32(0)
    highest = n
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
            if n > highest:
                highest = n
        steps += 1
    y[0] = steps
    y[1] = highest


def collatz_reference(x: np.ndarray) -> np.ndarray:
    rows = []
    for start in x[:, 0].tolist():
        n, steps, highest = start, 0, start
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            highest = max(highest, n)
            steps += 1
        rows.append((steps, highest))
    return np.array(rows)


@cute.jit
def nested(x: cute.Tensor, y: cute.Tensor) -> None:
    """Branches in branches in a loop; lanes meet again after each, as the shuffles and ballots there show."""
    lane = arch.lane_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(x[0], unroll=1):
        if (lane + i) % 3 == 0:
            total += 5
            if lane % 2 == 0:
                for j in cutlass.range(lane % 5, unroll=1):
                    total += j
            else:
                total -= i
        elif lane % 7 == 1:
            total += 100
    arch.sync_warp()
    y[0] = total
    y[1] = arch.shuffle_sync_bfly(total, 1)
    y[2] = cutlass.Int32(arch.vote_ballot_sync(total > 50))


def nested_reference(x: np.ndarray) -> np.ndarray:
    totals = []
    for row, (rounds,) in enumerate(x.tolist()):
        lane, total = row % 32, 0
        for i in range(rounds):
            if (lane + i) % 3 == 0:
                total += 5
                total += sum(range(lane % 5)) if lane % 2 == 0 else -i
            elif lane % 7 == 1:
                total += 100
        totals.append(total)
    values = np.array(totals).reshape(-1, 32)
    ballots = (
        ((values > 50).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32).view(np.int32)
    )
    return np.stack([values.reshape(-1), values[:, np.arange(32) ^ 1].reshape(-1), np.repeat(ballots, 32)], axis=1)


@cute.jit
def early_end(x: cute.Tensor, y: cute.Tensor) -> None:
    """Lanes leave at different points; the rest of the block counts them with atomics in shared memory."""
    thread, _, _ = arch.thread_idx()
    value = x[thread]
    if value % 2 != 0:
        y[thread] = ptx32("{ .reg .pred p; setp.lt.s32 p, $1, 0; selp.s32 $0, 7, 9, p; @p exit; }", value)
    else:
        y[thread] = value * 2


def early_end_reference(x: np.ndarray) -> np.ndarray:
    # A lane that exits inside the instruction block never stores.
    return np.where(x % 2 == 0, x * 2, np.where(x < 0, 0, 9))


@cute.jit
def spin_within_warp(x: cute.Tensor, y: cute.Tensor) -> None:
    """Each lane takes a lock in turn: a spin that ends only if the scheduler lets waiting lanes stand back."""
    thread, _, _ = arch.thread_idx()
    taken = cutlass.Int32(0)
    while taken == 0:
        if arch.atomic_cas(y.iterator, cmp=cutlass.Int32(0), val=cutlass.Int32(1), sem="acquire", scope="gpu") == 0:
            y[1] = y[1] + x[thread]
            arch.fence_acq_rel_gpu()
            arch.atomic_exch(y.iterator, cutlass.Int32(0), sem="release", scope="gpu")
            taken = cutlass.Int32(1)


@cute.jit
def register_heavy(x: cute.Tensor, y: cute.Tensor) -> None:
    """Sixty-four live values per thread: elementwise work on a whole row, then its sum, maximum and a rotation."""
    thread, _, _ = arch.thread_idx()
    row = cute.make_rmem_tensor(64, cutlass.Float32)
    cute.autovec_copy(x[thread, None], row)
    values = row.load()
    largest = values.reduce(cute.ReductionOp.MAX, float("-inf"), 0)
    total = values.reduce(cute.ReductionOp.ADD, 0.0, 0)
    out = cute.make_rmem_tensor(64, cutlass.Float32)
    out.store(cute.where(values > 0.0, values * 2.0, values - 1.0))
    for i in cutlass.range_constexpr(64):
        y[thread, i] = out[(i + 13) % 64] + row[63 - i]
    y[thread, 64] = largest
    y[thread, 65] = total


def register_heavy_reference(x: np.ndarray) -> np.ndarray:
    out = np.where(x > 0, x * 2, x - 1)
    mixed = np.roll(out, -13, axis=1) + x[:, ::-1]
    return np.concatenate([mixed, x.max(1, keepdims=True), x.sum(1, keepdims=True)], axis=1)


def lock_reference(x: np.ndarray) -> np.ndarray:
    return np.array([0, x.sum()])


FEATURES = (
    thread_feature(
        "collatz",
        collatz,
        collatz_reference,
        results=2,
        draw=lambda random, shape: random.integers(1, 3000, shape),
        opcodes=(r"@%p\d+ bra", "setp"),
    ),
    thread_feature(
        "nested_divergence",
        nested,
        nested_reference,
        results=3,
        draw=lambda random, shape: random.integers(0, 12, shape),
        opcodes=("bar.warp.sync", "shfl.sync.bfly", "vote.sync.ballot"),
    ),
    block_feature("early_end", early_end, early_end_reference, shape=(128,), opcodes=(r"@p exit",)),
    block_feature(
        "spin_within_warp",
        spin_within_warp,
        lock_reference,
        shape=(64,),
        out_shape=(2,),
        block=(64, 1, 1),
        opcodes=("atom.*cas", "atom.*exch"),
    ),
    block_feature(
        "register_heavy",
        register_heavy,
        register_heavy_reference,
        shape=(32, 64),
        out_shape=(32, 66),
        block=(32, 1, 1),
        dtype=np.float32,
        draw=lambda random, shape: random.integers(-50, 50, shape),
        opcodes=("ld.global.v[24]", r"(max.f32|setp.gt.f32)"),
    ),
)
