"""Small kernels for tests: sources, not modules, since kernels are never imported into pytest's process."""

from __future__ import annotations

TINY = """
import cutlass
import cutlass.cute as cute


class Tile:
    def __init__(self, rows):
        self.rows = rows

    @cute.jit
    def __call__(self, x: cute.Pointer, n: cutlass.Int32):
        plain = cute.make_layout((8, 64), stride=(64, 1))
        self.smem_layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, plain)
        layout = cute.make_layout((self.rows, 4))
        layout = cute.make_layout((self.rows, 8))
        x = cute.make_tensor(x, cute.make_layout((n, 4), stride=(4, 1)))
        pair = (cute.make_layout(2), [cute.make_layout(3)])
        _ = cute.make_layout(7)
        self.kernel(x, n).launch(grid=(n, 2, 1), block=(64, 1, 1), smem=1024)

    @cute.kernel
    def kernel(self, x: cute.Tensor, n: cutlass.Int32):
        tid, _, _ = cute.arch.thread_idx()
        if tid == 0:
            inner = cute.make_layout((4, 4))
            x[0, 0] = cutlass.Float16(1.0)
        for i in cutlass.range(n):
            looped = cute.make_layout((2, 2), stride=(2, 1))
            x[i, 1] = cutlass.Float16(2.0)


def pointer():
    from cutlass.cute.runtime import make_ptr

    return make_ptr(cutlass.Float16, 256, cute.AddressSpace.gmem, assumed_align=16)


def build():
    return cute.compile(Tile(16), pointer(), cutlass.Int32(3))


def launch():
    build()(pointer(), cutlass.Int32(5))
"""
"""A class kernel, outside the contract, with an entry that compiles and one that also launches (5 x 2 CTAs)."""

CONTRACT = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack
from task import input_t, output_t


@cute.kernel
def touch(c: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    c[tid, 0] = cutlass.Float16(0.0)


@cute.jit
def go(c: cute.Tensor, tiles: cutlass.Int32):
    touch(c).launch(grid=(tiles, 1, 1), block=(32, 1, 1))


def custom_kernel(data: input_t) -> output_t:
    abc, _, _, sizes = data
    for a, b, c in abc:
        assert a.is_cuda
    c = from_dlpack(abc[0][2][:, :, 0])
    go(c, cutlass.Int32(sum(-(-m // 128) * (n // 128) for m, n, k, l in sizes)))
    return [c for _, _, c in abc]
"""
"""A kernel under GPU MODE's contract that launches one CTA a tile."""
