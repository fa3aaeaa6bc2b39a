"""Two kernels on one stream, the second of which may begin before the first has ended."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute import arch


class Pair:
    """The pair: how the second waits, whether the first lets it start, and whether it is launched so that it may."""

    def __init__(self, *, wait: str = "all", lets: bool = True, pdl: bool = True) -> None:
        self.wait, self.lets, self.pdl = wait, lets, pdl

    @cute.jit
    def __call__(self, x: cute.Tensor, middle: cute.Tensor, source: cute.Tensor, target: cute.Tensor) -> None:
        self.first(x, middle).launch(grid=(2, 1, 1), block=(64, 1, 1))
        self.second(source, target).launch(grid=(2, 1, 1), block=(64, 1, 1), use_pdl=self.pdl)

    @cute.kernel
    def first(self, x: cute.Tensor, middle: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        if cutlass.const_expr(self.lets):
            arch.griddepcontrol_launch_dependents()
        i = block * 64 + thread
        middle[i] = x[i] * 2.0

    @cute.kernel
    def second(self, source: cute.Tensor, target: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        block, _, _ = arch.block_idx()
        i = block * 64 + thread
        if cutlass.const_expr(self.wait.startswith("bulk")):
            smem = cutlass.utils.SmemAllocator()
            values = smem.allocate_tensor(cutlass.Float32, cute.make_layout(64), byte_alignment=128)
            barrier = smem.allocate_array(cutlass.Int64, 1)
            if thread == 0:
                arch.mbarrier_init(barrier, 1)
                arch.mbarrier_init_fence()
                if cutlass.const_expr(self.wait == "bulk"):
                    arch.griddepcontrol_wait()
                arch.mbarrier_arrive_and_expect_tx(barrier, 256)
            arch.barrier()
            atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyBulkG2SOp(), cutlass.Float32)
            if thread < 32:
                with arch.elect_one():
                    cute.copy(atom, cute.local_tile(source, (64,), (block,)), values, mbar_ptr=barrier)
            arch.mbarrier_wait(barrier, 0)
            target[i] = values[thread] + 1.0
        else:
            if cutlass.const_expr(self.wait == "all"):
                arch.griddepcontrol_wait()
            if cutlass.const_expr(self.wait.startswith("one")):
                waiters = 32
                if thread < waiters:
                    arch.griddepcontrol_wait()
            if cutlass.const_expr(self.wait == "one, barrier"):
                arch.barrier()
            value = source[i]
            if cutlass.const_expr(self.wait == "late"):
                arch.griddepcontrol_wait()
            target[i] = value + 1.0
