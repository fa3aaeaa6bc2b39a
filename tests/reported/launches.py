"""Programmatic dependent launch: a kernel that begins before the data of the one before it are there."""

from __future__ import annotations

from collections.abc import Callable

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute import arch
from cutlass.cute.runtime import from_dlpack

ROWS = 8
COLUMNS = 32


class Chain:
    """A kernel that writes a table, and one, launched with PDL, that copies the rows which the table names.

    Args:
        lets: Whether the first kernel executes ``griddepcontrol.launch_dependents``.
        waits: Where the second waits: ``first``, ``late`` (behind the table), or ``never``.
    """

    def __init__(self, *, lets: bool, waits: str) -> None:
        self.lets, self.waits = lets, waits

    @cute.jit
    def __call__(self, x: cute.Tensor, table: cute.Tensor, y: cute.Tensor) -> None:
        self.fill(table).launch(grid=(1, 1, 1), block=(COLUMNS, 1, 1))
        self.gather(x, table, y).launch(grid=(ROWS, 1, 1), block=(COLUMNS, 1, 1), use_pdl=True)

    @cute.kernel
    def fill(self, table: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        if cutlass.const_expr(self.lets):
            arch.griddepcontrol_launch_dependents()
        if thread < ROWS:
            table[thread] = ROWS - 1 - thread

    @cute.kernel
    def gather(self, x: cute.Tensor, table: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        if cutlass.const_expr(self.waits == "first"):
            arch.griddepcontrol_wait()
        row = table[block]
        if cutlass.const_expr(self.waits == "late"):
            arch.griddepcontrol_wait()
        y[block, thread] = x[row, thread]


class Transform:
    """A kernel that scales rows, and one, launched with PDL, that adds and subtracts pairs of them in place."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits

    @cute.jit
    def __call__(self, x: cute.Tensor, _table: cute.Tensor, y: cute.Tensor) -> None:
        self.scale(x, y).launch(grid=(ROWS, 1, 1), block=(COLUMNS, 1, 1))
        self.butterfly(y).launch(grid=(ROWS, 1, 1), block=(COLUMNS // 2, 1, 1), use_pdl=True)

    @cute.kernel
    def scale(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        arch.griddepcontrol_launch_dependents()
        y[block, thread] = x[block, thread] * 3

    @cute.kernel
    def butterfly(self, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        if cutlass.const_expr(self.waits):
            arch.griddepcontrol_wait()
        a, b = y[block, 2 * thread], y[block, 2 * thread + 1]
        y[block, 2 * thread] = a + b
        y[block, 2 * thread + 1] = a - b


def runs(make: Callable[[bool], Chain | Transform]) -> Callable[[bool], None]:
    """Return a function that launches a pair of kernels."""

    def run(mended: bool) -> None:
        x = torch.arange(ROWS * COLUMNS, dtype=torch.int32).reshape(ROWS, COLUMNS).cuda()
        table, y = torch.zeros(ROWS, dtype=torch.int32).cuda(), torch.zeros_like(x)
        make(mended)(from_dlpack(x), from_dlpack(table), from_dlpack(y))

    return run


LAUNCHES = {
    "NVIDIA/cutlass#2760": runs(lambda mended: Chain(lets=True, waits="first" if mended else "never")),
    "flashinfer-ai/flashinfer#2708": runs(lambda mended: Chain(lets=mended, waits="first" if mended else "never")),
    "ggml-org/llama.cpp#22522": runs(lambda mended: Transform(waits=mended)),
    "NVIDIA/cccl#5456": runs(lambda mended: Chain(lets=False, waits="first" if mended else "late")),
}
