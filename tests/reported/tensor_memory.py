"""Tensor memory: its address, and loads that are still in flight when their columns are given away."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, utils
from cutlass.cute import arch

from tests.sim.features.perthread import ptx32

from .launching import Body, launch

COLUMNS = 32
FILL = "tcgen05.st.sync.aligned.32x32b.x1.b32 [$1], {$2}; tcgen05.wait::st.sync.aligned; mov.b32 $0, 0;"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {$0}, [$1];"
WAIT = "tcgen05.wait::ld.sync.aligned; mov.b32 $0, 0;"
BEFORE = "tcgen05.fence::before_thread_sync; mov.b32 $0, 0;"
AFTER = "tcgen05.fence::after_thread_sync; mov.b32 $0, 0;"


def unseen_address(mended: bool) -> Body:
    """One warp allocates, all read the address; the barrier between belongs to the main loop, which may be empty."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        place = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        if warp == 0:
            arch.alloc_tmem(COLUMNS, place.iterator)
        if cutlass.const_expr(mended):
            arch.sync_threads()
        y[0, thread] = x[0, thread] + place[0]
        arch.sync_threads()
        if warp == 0:
            arch.relinquish_tmem_alloc_permit()
            arch.dealloc_tmem(arch.retrieve_tmem_ptr(Int32, 16, place.iterator), COLUMNS)

    return body


def released_early(mended: bool) -> Body:
    """A warp loads a stage of TMEM and releases it to the warp that writes it, which lies at the same lanes."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        lane = arch.lane_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        place = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        full = smem.allocate_array(Int64, 2)
        empty = full + 1
        if thread == 0:
            arch.mbarrier_init(full, 32)
            arch.mbarrier_init(empty, 32)
        arch.mbarrier_init_fence()
        if warp == 0:
            arch.alloc_tmem(COLUMNS, place.iterator)
        arch.sync_threads()
        column = place[0]
        ptx32(AFTER)
        if warp == 0:
            for i in cutlass.range_constexpr(2):
                arch.mbarrier_wait(empty, i % 2 ^ 1)
                ptx32(AFTER)
                ptx32(FILL, column, x[i, lane])
                ptx32(BEFORE)
                arch.mbarrier_arrive(full)
        if warp == 4:
            for i in cutlass.range_constexpr(2):
                arch.mbarrier_wait(full, i % 2)
                ptx32(AFTER)
                value = ptx32(LOAD, column)
                if cutlass.const_expr(mended):
                    ptx32(WAIT)
                ptx32(BEFORE)
                arch.mbarrier_arrive(empty)
                if cutlass.const_expr(not mended):
                    ptx32(WAIT)
                y[i, lane] = value
        ptx32(BEFORE)
        arch.sync_threads()
        ptx32(AFTER)
        if warp == 0:
            arch.relinquish_tmem_alloc_permit()
            arch.dealloc_tmem(arch.retrieve_tmem_ptr(Int32, 16, place.iterator), COLUMNS)

    return body


def unused_load(mended: bool) -> Body:
    """A warp loads columns whose values nobody reads, and another frees them behind a barrier."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        place = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        if warp == 0:
            arch.alloc_tmem(COLUMNS, place.iterator)
        arch.sync_threads()
        column = place[0]
        ptx32(AFTER)
        if warp == 1:
            ptx32(FILL, column + (32 << 16), x[0, thread])
            ptx32(LOAD, column + (32 << 16))
            if cutlass.const_expr(mended):
                ptx32(WAIT)
        y[0, thread] = x[0, thread]
        ptx32(BEFORE)
        arch.sync_threads()
        ptx32(AFTER)
        if warp == 0:
            arch.relinquish_tmem_alloc_permit()
            arch.dealloc_tmem(arch.retrieve_tmem_ptr(Int32, 16, place.iterator), COLUMNS)

    return body


LAUNCHES = {
    "NVIDIA/cutlass#3652": launch(unused_load, rows=1, columns=64, threads=64),
    "NVIDIA/cutlass#2835": launch(unseen_address, rows=1, columns=128),
    "flashinfer-ai/flashinfer#5335": launch(released_early, rows=2, columns=32, threads=160),
}
