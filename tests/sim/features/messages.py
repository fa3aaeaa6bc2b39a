"""``cute.printf`` (PTX: a call of vprintf) and device assertions that hold."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass.cute import arch

from .blocks import block_feature


@cute.jit
def messages(x: cute.Tensor, y: cute.Tensor) -> None:
    """Uniform and divergent prints of integers, floats and 64-bit values."""
    thread, _, _ = arch.thread_idx()
    block, _, _ = arch.block_idx()
    if thread == 0:
        cute.printf("block %d starts\n", block)
    value = x[block * 32 + thread]
    if value > 900:
        cute.printf("thread {} of block {} has {} or {}", thread, block, value, cutlass.Float32(value) * 0.5)
    if thread == 31:
        cute.printf("wide {}", cutlass.Int64(value) * 10000000000)
    y[block * 32 + thread] = value + 1


@cute.jit
def assertions(x: cute.Tensor, y: cute.Tensor) -> None:
    """An assertion that always holds must neither stop nor change a run."""
    thread, _, _ = arch.thread_idx()
    cute.testing.assert_(x[thread] < 1000, "values are below 1000")  # noqa: PT009
    y[thread] = x[thread] * 3


def draw_some_large(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    drawn = random.integers(-100, 100, shape)
    drawn[5], drawn[31], drawn[40] = 901, 902, 903
    return drawn


FEATURES = (
    block_feature(
        "printf",
        messages,
        lambda x: x + 1,
        shape=(64,),
        draw=draw_some_large,
        grid=(2, 1, 1),
        block=(32, 1, 1),
        opcodes=("vprintf",),
        prints=(
            "block 0 starts\n",
            "block 1 starts\n",
            "thread 5 of block 0 has 901 or 450.5",
            "thread 8 of block 1 has 903 or 451.5",
            "wide 9020000000000",
        ),
    ),
    block_feature(
        "assertion",
        assertions,
        lambda x: x * 3,
        shape=(32,),
        block=(32, 1, 1),
        options="--enable-assertions",
        opcodes=("setp", "trap"),
    ),
)
