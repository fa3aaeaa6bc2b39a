"""Warp collectives: votes, shuffles, reductions and matches; PTX ISA, "vote", "shfl", "redux", "match"."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass.cute import arch

from .perthread import ptx32, thread_feature

LANES = 32
LOW_HALF = 0x0000FFFF


def warps(x: np.ndarray) -> np.ndarray:
    """Rows by warp and lane: (warps, lanes, words)."""
    return x.reshape(-1, LANES, x.shape[-1])


def same_for_all(value: np.ndarray) -> np.ndarray:
    """One value per warp, given to each of its lanes: (rows,)."""
    return np.repeat(value, LANES)


@cute.jit
def vote(x: cute.Tensor, y: cute.Tensor) -> None:
    positive = x[0] > 0
    y[0] = cutlass.Int32(arch.vote_ballot_sync(positive))
    y[1] = cutlass.Int32(arch.vote_any_sync(positive))
    y[2] = cutlass.Int32(arch.vote_all_sync(positive))
    y[3] = cutlass.Int32(arch.vote_uni_sync(positive))
    y[4] = arch.popc(y[0])
    # Half of the warp votes on its own, in divergent code.
    y[5] = -1
    if arch.lane_idx() < 16:
        y[5] = cutlass.Int32(arch.vote_ballot_sync(positive, LOW_HALF))


def vote_reference(x: np.ndarray) -> np.ndarray:
    positive = warps(x)[..., 0] > 0
    ballot = (positive.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
    count, every, some = positive.sum(axis=1), positive.all(axis=1), positive.any(axis=1)
    half = np.where(np.arange(LANES) < 16, (ballot & LOW_HALF)[:, None], -1).reshape(-1)
    uniform = every | ~some
    columns = [same_for_all(v) for v in (ballot.view(np.int32), some, every, uniform, count)]
    return np.stack([*columns, half], axis=1)


def draw_votes(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Four warps: mixed, all positive, none positive, mixed."""
    drawn = random.integers(-100, 100, shape)
    drawn[32:64] = 5
    drawn[64:96] = -5
    return drawn


@cute.jit
def shuffle(x: cute.Tensor, y: cute.Tensor) -> None:
    lane = arch.lane_idx()
    value = x[0]
    y[0] = arch.shuffle_sync(value, 7)
    y[1] = arch.shuffle_sync(value, x[1] & 63)  # a lane of one's own, some beyond 31: taken modulo 32
    y[2] = arch.shuffle_sync_up(value, 3, mask_and_clamp=0)
    y[3] = arch.shuffle_sync_down(value, 5)
    y[4] = arch.shuffle_sync_bfly(value, 6)
    # Segments of 8 lanes.
    y[5] = arch.shuffle_sync_down(value, 2, mask_and_clamp=(24 << 8) | 31)
    y[6] = arch.shuffle_sync_up(value, 1, mask_and_clamp=24 << 8)
    y[7] = arch.warp_reduction_sum(lane + value)
    wide = cutlass.Int64(value) * 3
    y[8] = cutlass.Int32(arch.shuffle_sync_bfly(wide, 1) >> 8)


def shuffle_reference(x: np.ndarray) -> np.ndarray:
    lanes = np.arange(LANES)
    rows = []
    for warp in warps(x):
        value = warp[:, 0]

        def moved(source: np.ndarray, inside: np.ndarray, value: np.ndarray = value) -> np.ndarray:
            return np.where(inside, value[np.clip(source, 0, 31)], value)

        total = np.full(LANES, (value.astype(np.int64) + lanes).sum()).astype(np.int32)
        segment = lanes & 24
        rows.append(
            np.stack(
                [
                    np.full(LANES, value[7]),
                    value[warp[:, 1] & 31],
                    moved(lanes - 3, lanes >= 3),
                    moved(lanes + 5, lanes + 5 < 32),
                    value[lanes ^ 6],
                    moved(lanes + 2, lanes + 2 < segment + 8),
                    moved(lanes - 1, lanes - 1 >= segment),
                    total,
                    ((value.astype(np.int64) * 3)[lanes ^ 1] >> 8).astype(np.int32),
                ],
                axis=1,
            )
        )
    return np.concatenate(rows)


@cute.jit
def redux(x: cute.Tensor, y: cute.Tensor) -> None:
    for i, kind in enumerate(("add", "min", "max", "and", "or", "xor")):
        y[i] = arch.warp_redux_sync(x[0], kind)
    y[6] = -1
    if arch.lane_idx() < 16:
        y[6] = arch.warp_redux_sync(x[0], "add", LOW_HALF)


def redux_reference(x: np.ndarray) -> np.ndarray:
    value = warps(x)[..., 0]
    low = np.add.reduce(value[:, :16], axis=1, dtype=np.int32)
    columns = [same_for_all(np.add.reduce(value, axis=1, dtype=np.int32))]
    columns += [
        same_for_all(operation.reduce(value, axis=1))
        for operation in (np.minimum, np.maximum, np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    ]
    half = np.where(np.arange(LANES) < 16, low[:, None], -1).reshape(-1)
    return np.stack([*columns, half], axis=1)


@cute.jit
def redux_float(x: cute.Tensor, y: cute.Tensor) -> None:
    y[0] = arch.warp_redux_sync(x[0], "fmax")
    y[1] = arch.warp_redux_sync(x[0], "fmin")
    y[2] = arch.warp_redux_sync(x[0], "fmax", abs=True)


def redux_float_reference(x: np.ndarray) -> np.ndarray:
    value = warps(x)[..., 0]
    return np.stack([same_for_all(v) for v in (value.max(1), value.min(1), np.abs(value).max(1))], axis=1)


@cute.jit
def match(x: cute.Tensor, y: cute.Tensor) -> None:
    key = x[0] & 3
    y[0] = ptx32("match.any.sync.b32 $0, $1, 0xffffffff;", key)
    y[1] = ptx32("match.all.sync.b32 $0, $1, 0xffffffff;", key)
    y[2] = ptx32("activemask.b32 $0;")
    y[3] = ptx32("mov.u32 $0, %lanemask_lt;")
    y[4] = cutlass.Int32(0)
    with arch.elect_one():
        y[4] = cutlass.Int32(1)


def match_reference(x: np.ndarray) -> np.ndarray:
    key = warps(x)[..., 0] & 3
    bits = np.uint64(1) << np.arange(LANES, dtype=np.uint64)
    same = ((key[:, :, None] == key[:, None, :]) * bits).sum(axis=2).astype(np.uint32).view(np.int32)
    every = np.where((key == key[:, :1]).all(axis=1), -1, 0)
    lanes = np.tile(np.arange(LANES), len(key))
    below = ((np.uint64(1) << lanes.astype(np.uint64)) - np.uint64(1)).astype(np.uint32).view(np.int32)
    return np.stack([same.reshape(-1), same_for_all(every), np.full(len(x), -1), below, lanes == 0], axis=1)


def draw_keys(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """The second warp has one key."""
    drawn = random.integers(0, 1000, shape)
    drawn[32:64] = 6
    return drawn


FEATURES = (
    thread_feature(
        "vote",
        vote,
        vote_reference,
        results=6,
        rows=128,
        threads=64,
        draw=draw_votes,
        opcodes=("vote.sync.ballot.b32", "vote.sync.any.pred", "vote.sync.all.pred", "vote.sync.uni.pred", "popc.b32"),
    ),
    thread_feature(
        "shuffle",
        shuffle,
        shuffle_reference,
        words=2,
        results=9,
        opcodes=("shfl.sync.idx.b32", "shfl.sync.up.b32", "shfl.sync.down.b32", "shfl.sync.bfly.b32"),
    ),
    thread_feature(
        "redux",
        redux,
        redux_reference,
        results=7,
        opcodes=tuple(
            f"redux.sync.{kind}" for kind in ("add.s32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32")
        ),
    ),
    thread_feature(
        "redux_float",
        redux_float,
        redux_float_reference,
        results=3,
        dtype=np.float32,
        draw=lambda random, shape: random.normal(size=shape),
        opcodes=(r"redux.sync.max.f32", r"redux.sync.min.f32", r"redux.sync.max.abs.f32"),
    ),
    thread_feature(
        "match_and_masks",
        match,
        match_reference,
        results=5,
        draw=draw_keys,
        opcodes=("match.any.sync.b32", "match.all.sync.b32", "activemask.b32", "elect.sync"),
    ),
)
