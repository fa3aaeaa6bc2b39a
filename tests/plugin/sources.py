"""Small kernels for the plugin's tests: sources, not modules, since kernels are not imported into pytest's process."""

from __future__ import annotations

KERNEL = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr


@cute.kernel
def touch(c: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    c[tid, 0] = cutlass.Float16(0.0)


@cute.jit
def go(start: cute.Pointer, tiles: cutlass.Int32):
    c = cute.make_tensor(start, cute.make_layout((96, 128), stride=(128, 1)))
    tile = cute.make_layout((16, 4))
    stages = cute.make_layout((8, 2), stride=(2, 1))
    touch(c).launch(grid=(tiles, 1, 1), block=(32, 1, 1))


def custom_kernel(data):
    abc, _, _, sizes = data
    start = make_ptr(cutlass.Float16, abc[0][2].data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    go(start, cutlass.Int32(len(sizes)))
    return [c for _, _, c in abc]
"""
"""Under GPU MODE's contract; its layouts are go.c, go.stages, go.start, go.tile and touch.c."""

MILD = KERNEL.replace("cute.make_layout((16, 4))", "cute.make_layout((8, 8))")
"""``go.tile`` is the same function in other modes: below the default gate."""

SEVERE = KERNEL.replace("stride=(2, 1)", "stride=(1, 8)")
"""``go.stages`` is another function."""

OTHER_LAUNCH = KERNEL.replace("grid=(tiles, 1, 1)", "grid=(tiles, 2, 1)")
"""The grid differs, and nothing else."""

OTHER_CODE = KERNEL.replace("cutlass.Float16(0.0)", "c[tid, 1]")
"""A load that was not there: another opcode, at the same layouts and launch."""

ENTRY = """
import cutlass
import cutlass.cute as cute


class Tile:
    def __init__(self, rows):
        self.rows = rows

    @cute.jit
    def __call__(self, n: cutlass.Int32):
        tile = cute.make_layout((self.rows, 4))
        self.kernel(n).launch(grid=(n, 1, 1), block=(64, 1, 1))

    @cute.kernel
    def kernel(self, n: cutlass.Int32):
        inner = cute.make_layout((4, 4))


def build():
    return cute.compile(Tile(16), cutlass.Int32(3))


def build_wide():
    return cute.compile(Tile(32), cutlass.Int32(3))
"""
"""A class kernel outside the contract, with two entries that compile it at 16 and at 32 rows."""

LINE_OF_TILE = 1 + KERNEL.splitlines().index("    tile = cute.make_layout((16, 4))")
LINE_OF_STAGES = 1 + KERNEL.splitlines().index("    stages = cute.make_layout((8, 2), stride=(2, 1))")
