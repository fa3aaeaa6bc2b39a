"""A small kernel that fills C, for the checks that simulate."""

from __future__ import annotations

import re

from .conftest import Project, Ran

FILL = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr

ROWS = 8


@cute.kernel
def fill(c: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    tile = cta
    for row in cutlass.range_constexpr(ROWS):
        c[tile * ROWS + row, lane] = cutlass.Float16(1.0)


@cute.jit
def go(start: cute.Pointer, ctas: cutlass.Int32):
    c = cute.make_tensor(start, cute.make_layout((40, 128), stride=(128, 1)))
    fill(c).launch(grid=(ctas, 1, 1), block=(128, 1, 1))


def custom_kernel(data):
    abc, _, _, _ = data
    start = make_ptr(cutlass.Float16, abc[0][2].data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    go(start, cutlass.Int32(5))
    return [c for _, _, c in abc]
"""
"""Writes every element of a C of 40 x 128 once; what it writes is wrong, which is not what these checks are about."""
PROBLEM = "40x128x256"


def written(project: Project, source: str) -> Project:
    """Write a kernel whose trace on the problem is in the cache."""
    project.kernel(source=source, problems=(PROBLEM,))
    return project


def outcomes(ran: Ran, **expected: int) -> None:
    """Assert the counts of the checks that were selected, however many others there are."""
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)", ran.text.splitlines()[-1])
    assert {word: int(count) for count, word in found} == expected, ran.text + ran.errors
