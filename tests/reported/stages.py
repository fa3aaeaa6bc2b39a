"""Shared memory that is used again, or read, too early."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync

from .launching import Body, launch

WARPS = 4
TILE = 128
TILES = 5
STAGES = 3


def bulk_atoms() -> tuple[cute.CopyAtom, cute.CopyAtom]:
    """Bulk copies of words to shared memory and back."""
    load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Int32)
    store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Int32)
    return load, store


def two_maxima(mended: bool) -> Body:
    """Two reductions over the warps of a CTA through one scratch."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        scratch = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout(WARPS), byte_alignment=16)
        total = Int32(0)
        for row in cutlass.range_constexpr(2):
            if thread % 32 == 0:
                scratch[warp] = x[row, thread]
            arch.sync_threads()
            maximum = Int32(0)
            for i in cutlass.range_constexpr(WARPS):
                maximum = cutlass.max(maximum, scratch[i])
            total += maximum
            arch.sync_warp()
            if cutlass.const_expr(mended):
                arch.sync_threads()
        y[0, thread] = total

    return body


def two_inputs(mended: bool) -> Body:
    """Two bulk loads with a barrier each, of which the consumers wait for one."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        queries = smem.allocate_tensor(Int32, cute.make_layout(TILE), byte_alignment=128)
        sums = smem.allocate_tensor(Int32, cute.make_layout(TILE), byte_alignment=128)
        queries_full = smem.allocate_array(Int64, 2)
        sums_full = queries_full + 1
        if thread == 0:
            arch.mbarrier_init(queries_full, 1)
            arch.mbarrier_init(sums_full, 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        load, _ = bulk_atoms()
        if thread == 0:
            arch.mbarrier_arrive_and_expect_tx(queries_full, 4 * TILE)
            cute.copy(load, *cpasync.group_bulk_copy_modes(x[0, None], queries), mbar_ptr=queries_full)
            arch.mbarrier_arrive_and_expect_tx(sums_full, 4 * TILE)
            cute.copy(load, *cpasync.group_bulk_copy_modes(x[1, None], sums), mbar_ptr=sums_full)
        arch.mbarrier_wait(queries_full, 0)
        if cutlass.const_expr(mended):
            arch.mbarrier_wait(sums_full, 0)
        y[0, thread] = queries[thread] - sums[thread]

    return body


def aliased(mended: bool) -> Body:
    """Partial sums that lie over the operand that other warps still read."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        operand = smem.allocate_tensor(Int32, cute.make_layout(TILE), byte_alignment=16)
        partial = cute.make_tensor(operand.iterator, cute.make_layout(TILE))
        operand[thread] = x[0, thread]
        arch.sync_threads()
        total = operand[thread] + operand[TILE - 1 - thread]
        if cutlass.const_expr(mended):
            arch.sync_threads()
        partial[thread] = total
        arch.sync_threads()
        y[0, thread] = partial[thread ^ 1]

    return body


def skipped_wait(mended: bool) -> Body:
    """A ring of one stage: the second producer warp has nothing to write and does not wait for the stage."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        lane = arch.lane_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        positions = smem.allocate_tensor(Int32, cute.make_layout(32), byte_alignment=16)
        full = smem.allocate_array(Int64, 2)
        empty = full + 1
        if thread == 0:
            arch.mbarrier_init(full, 2)
            arch.mbarrier_init(empty, 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        if warp < 2:
            for i in cutlass.range(TILES, unroll=1):
                if cutlass.const_expr(mended) or warp == 0:
                    arch.mbarrier_wait(empty, i % 2 ^ 1)
                if warp == 0:
                    positions[lane] = x[i, lane]
                arch.sync_warp()
                with arch.elect_one():
                    arch.mbarrier_arrive(full)
        else:
            for i in cutlass.range(TILES, unroll=1):
                arch.mbarrier_wait(full, i % 2)
                y[i, lane] = positions[lane]
                arch.sync_warp()
                with arch.elect_one():
                    arch.mbarrier_arrive(empty)

    return body


def stored_stage(mended: bool) -> Body:
    """A stage is loaded again one store too early."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        stages = smem.allocate_tensor(Int32, cute.make_layout((TILE, 2)), byte_alignment=128)
        full = smem.allocate_array(Int64, 2)
        if thread == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(full + 1, 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        load, store = bulk_atoms()
        if thread == 0:
            for i in cutlass.range_constexpr(TILES):
                arch.cp_async_bulk_wait_group(1 if mended else 2, read=True)
                arch.mbarrier_arrive_and_expect_tx(full + i % 2, 4 * TILE)
                cute.copy(load, *cpasync.group_bulk_copy_modes(x[i, None], stages[None, i % 2]), mbar_ptr=full + i % 2)
                arch.mbarrier_wait(full + i % 2, i // 2 % 2)
                cute.copy(store, *cpasync.group_bulk_copy_modes(stages[None, i % 2], y[i, None]))
                arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    return body


def published_early(mended: bool) -> Body:
    """A warp copies with cp.async, and arrives before its copies have landed."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        lane = arch.lane_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        factors = smem.allocate_tensor(Int32, cute.make_layout((TILE, 2)), byte_alignment=16)
        full = smem.allocate_array(Int64, 4)
        empty = full + 2
        if thread == 0:
            for i in cutlass.range_constexpr(2):
                arch.mbarrier_init(full + i, 32)
                arch.mbarrier_init(empty + i, 32)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        if warp == 0:
            copy = copies_of(32)
            mine = copy.get_slice(lane)
            for i in cutlass.range(TILES, unroll=1):
                arch.mbarrier_wait(empty + i % 2, i // 2 % 2 ^ 1)
                cute.copy(copy, mine.partition_S(x[i, None]), mine.partition_D(factors[None, i % 2]))
                if cutlass.const_expr(mended):
                    arch.cp_async_mbarrier_arrive_noinc(full + i % 2)
                else:
                    arch.mbarrier_arrive(full + i % 2)
        else:
            for i in cutlass.range(TILES, unroll=1):
                arch.mbarrier_wait(full + i % 2, i // 2 % 2)
                y[i, lane] = factors[4 * lane, i % 2]
                arch.mbarrier_arrive(empty + i % 2)

    return body


def copies_of(threads: int) -> cute.TiledCopy:
    """A cp.async of TILE words by some threads."""
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=128)
    return cute.make_tiled_copy_tv(atom, cute.make_layout(threads), cute.make_layout(4))


def groups_in_flight(mended: bool) -> Body:
    """Two groups of cp.async are in flight, and two may be: the wait waits for none."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        ring = smem.allocate_tensor(Int32, cute.make_layout((TILE, STAGES)), byte_alignment=16)
        copy = copies_of(32)
        mine = copy.get_slice(thread)
        for i in cutlass.range_constexpr(STAGES - 1):
            cute.copy(copy, mine.partition_S(x[i, None]), mine.partition_D(ring[None, i]))
            arch.cp_async_commit_group()
        total = Int32(0)
        for i in cutlass.range_constexpr(TILES):
            arch.cp_async_wait_group(STAGES - 2 if mended else STAGES - 1)
            arch.sync_threads()
            total += ring[TILE - 1 - thread, i % STAGES]
            if cutlass.const_expr(i + STAGES - 1 < TILES):
                ahead = i + STAGES - 1
                cute.copy(copy, mine.partition_S(x[ahead, None]), mine.partition_D(ring[None, ahead % STAGES]))
            arch.cp_async_commit_group()
        y[0, thread] = total

    return body


def prefetched_last(mended: bool) -> Body:
    """The main loop ends with a prefetch in flight, and the epilogue writes to the stage that it fills."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        stages = smem.allocate_tensor(Int32, cute.make_layout((TILE, 2)), byte_alignment=16)
        copy = copies_of(32)
        mine = copy.get_slice(thread % 32)
        for i in cutlass.range_constexpr(2):
            if thread < 32:
                cute.copy(copy, mine.partition_S(x[i, None]), mine.partition_D(stages[None, i]))
            arch.cp_async_commit_group()
        arch.cp_async_wait_group(1)
        arch.sync_threads()
        total = stages[TILE - 1 - thread, 0]
        if cutlass.const_expr(mended):
            arch.cp_async_wait_group(0)
            arch.sync_threads()
        stages[thread, 1] = total
        arch.sync_threads()
        y[0, thread] = stages[thread ^ 1, 1]

    return body


def unfenced_store(mended: bool) -> Body:
    """The epilogue's tile is written by threads and stored by a bulk copy, with a barrier but no proxy fence."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        outputs = smem.allocate_tensor(Int32, cute.make_layout(TILE), byte_alignment=128)
        _, store = bulk_atoms()
        outputs[thread] = x[0, thread] * 2
        if cutlass.const_expr(mended):
            arch.fence_proxy("async.shared", space="cta")
        arch.barrier(barrier_id=1, number_of_threads=TILE)
        if thread == 0:
            cute.copy(store, *cpasync.group_bulk_copy_modes(outputs, y[0, None]))
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    return body


LAUNCHES = {
    "NVIDIA/cutlass#3597": launch(two_maxima, rows=2, columns=128),
    "NVIDIA/cutlass#2626": launch(two_inputs, rows=2, columns=TILE),
    "flashinfer-ai/flashinfer#4409": launch(published_early, rows=TILES, columns=TILE, threads=64),
    "NVIDIA/cccl#10964": launch(skipped_wait, rows=TILES, columns=32, threads=96),
    "NVIDIA/cutlass#2502": launch(groups_in_flight, rows=TILES, columns=TILE, threads=32),
    "NVIDIA/cutlass#1326": launch(prefetched_last, rows=2, columns=TILE),
    "sgl-project/sglang#37287": launch(aliased, rows=1, columns=TILE),
    "deepseek-ai/DeepEP#657": launch(stored_stage, rows=TILES, columns=TILE, threads=32),
    "NVIDIA/cudnn-frontend#784": launch(unfenced_store, rows=1, columns=TILE),
}
