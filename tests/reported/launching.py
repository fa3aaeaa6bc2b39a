"""Launches of a twin's kernel, as it is or mended."""

from __future__ import annotations

from collections.abc import Callable

import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

from tests.sim.features.blocks import Blocks

__all__ = ["Body", "launch"]

Body = Callable[[cute.Tensor, cute.Tensor], None]


def launch(
    make: Callable[[bool], Body],
    *,
    rows: int,
    columns: int,
    ctas: int = 1,
    threads: int = 128,
    cluster: int = 1,
    out_rows: int | None = None,
) -> Callable[[bool], None]:
    """Return a function that launches ``make(mended)`` on int32 tensors of rows and columns."""

    def run(mended: bool) -> None:
        x = torch.arange(rows * columns, dtype=torch.int32).reshape(rows, columns).cuda()
        y = torch.zeros((out_rows or rows, columns), dtype=torch.int32).cuda()
        kernel = Blocks(make(mended), grid=(ctas, 1, 1), block=(threads, 1, 1), cluster=(cluster, 1, 1))
        kernel(from_dlpack(x, assumed_align=16), from_dlpack(y, assumed_align=16))

    return run
