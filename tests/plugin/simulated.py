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
OWN = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.kernel
def turn(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    shared = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(64), byte_alignment=16)
    shared[thread] = x[thread]
    cute.arch.barrier()
    y[thread] = shared[63 - thread]


@cute.jit
def go(x: cute.Pointer, y: cute.Pointer):
    layout = cute.make_layout(64)
    turn(cute.make_tensor(x, layout), cute.make_tensor(y, layout)).launch(grid=(1, 1, 1), block=(64, 1, 1))


def pointer(address):
    return make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)


def compile_it():
    return cute.compile(go, pointer(0), pointer(0))


def turned(x, y):
    compile_it()(pointer(x.data_ptr()), pointer(y.data_ptr()))
"""
"""A kernel of one CTA that turns a vector around; it is compiled by an entry."""
CONTRACT = """
import numpy as np

destination = True
problems = {"one": {"size": 64}}


def inputs(problem, rng):
    return {"x": rng.permutation(problem["size"]).astype(np.float32)}


def reference(x):
    return {"turned": x[::-1]}
"""
"""The contract that calls it."""
TABLE = """
[[tool.pytest_nvfp4.kernel]]
path = "k.py"
entry = "k.py::compile_it"
contract = "contract.py"
call = "k.py::turned"
side-stream = false
"""
"""Its launch is on the default stream."""


def written(project: Project, source: str) -> Project:
    """Write a kernel whose trace on the problem is in the cache."""
    project.kernel(source=source, problems=(PROBLEM,))
    return project


def outcomes(ran: Ran, **expected: int) -> None:
    """Assert the counts of the checks that were selected, however many others there are."""
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)", ran.text.splitlines()[-1])
    assert {word: int(count) for count, word in found} == expected, ran.text + ran.errors
