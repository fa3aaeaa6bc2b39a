"""Protocols that never end: missing arrives, wrong counts and phases."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, utils
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync

from .clusters import meet
from .launching import Body, launch
from .stages import bulk_atoms

TILES = 5


def ring(mended: bool, *, defect: str) -> Body:
    """A loading warp and a consumer warp share two stages; ``defect``: ``arrive``, ``count`` or ``phase``."""
    lost = "" if mended else defect

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        lane = arch.lane_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        smem = utils.SmemAllocator()
        stages = smem.allocate_tensor(Int32, cute.make_layout((32, 2)), byte_alignment=128)
        load, _ = bulk_atoms()
        full = smem.allocate_array(Int64, 4)
        empty = full + 2
        if thread == 0:
            for i in cutlass.range_constexpr(2):
                arch.mbarrier_init(full + i, 2 if lost == "count" else 1)
                arch.mbarrier_init(empty + i, 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        if warp == 0:
            for i in cutlass.range(TILES, unroll=1):
                arch.mbarrier_wait(empty + i % 2, i // 2 % 2 ^ (0 if lost == "phase" else 1))
                if lane == 0:
                    arch.mbarrier_arrive_and_expect_tx(full + i % 2, 128)
                    source, target = cpasync.group_bulk_copy_modes(x[i, None], stages[None, i % 2])
                    cute.copy(load, source, target, mbar_ptr=full + i % 2)
        else:
            for i in cutlass.range(TILES, unroll=1):
                arch.mbarrier_wait(full + i % 2, i // 2 % 2)
                y[i, lane] = stages[lane, i % 2]
                arch.sync_warp()
                if cutlass.const_expr(lost != "arrive"):
                    with arch.elect_one():
                        arch.mbarrier_arrive(empty + i % 2)

    return body


def work_queue(mended: bool) -> Body:
    """The first CTA of a cluster asks for work for all; each CTA's barrier counts the answer."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        answered = smem.allocate_array(Int64, 1)
        response = smem.allocate_tensor(Int32, cute.make_layout(4), byte_alignment=16)
        if thread == 0:
            arch.mbarrier_init(answered, 1)
        arch.mbarrier_init_fence()
        meet()
        if thread == 0:  # noqa: SIM102 (decided when tracing)
            if cutlass.const_expr(mended) or rank == 0:
                arch.mbarrier_arrive_and_expect_tx(answered, 16)
        meet()
        if thread == 0 and rank == 0:
            arch.issue_clc_query(answered, response.iterator)
        arch.mbarrier_wait(answered, 0)
        _, _, _, valid = arch.clc_response(response.iterator)
        y[rank, thread] = x[rank, thread] + valid
        meet()

    return body


def uneven(mended: bool) -> Body:
    """The CTAs of a cluster exchange stages, and one has a tile more than the other."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        empty = smem.allocate_array(Int64, 1)
        if thread == 0:
            arch.mbarrier_init(empty, 2)
        arch.mbarrier_init_fence()
        meet()
        k_tiles = 2 if cutlass.const_expr(mended) else 2 + rank
        for i in cutlass.range(k_tiles, unroll=1):
            y[rank, thread] = x[rank, thread] + i
            arch.sync_warp()
            with arch.elect_one():
                arch.mbarrier_arrive(empty)
                arch.mbarrier_arrive(empty, rank ^ 1)
            arch.mbarrier_wait(empty, i % 2)
        meet()

    return body


def early_return(mended: bool) -> Body:
    """Compute warps without work pass the epilogue's barrier with an arrive, tile after tile."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        for i in cutlass.range(3, unroll=1):
            if warp < 2:
                if cutlass.const_expr(mended):
                    arch.barrier(barrier_id=1, number_of_threads=96)
                else:
                    arch.barrier_arrive(barrier_id=1, number_of_threads=96)
            else:
                y[i, thread - 64] = x[i, thread - 64]
                arch.barrier(barrier_id=1, number_of_threads=96)

    return body


LAUNCHES = {
    "facebookexperimental/triton#1121": launch(
        lambda mended: ring(mended, defect="arrive"), rows=TILES, columns=32, threads=64
    ),
    "facebookexperimental/triton#1121, counts": launch(
        lambda mended: ring(mended, defect="count"), rows=TILES, columns=32, threads=64
    ),
    "facebookexperimental/triton#1121, phases": launch(
        lambda mended: ring(mended, defect="phase"), rows=TILES, columns=32, threads=64
    ),
    "facebookexperimental/triton#1024": launch(work_queue, rows=2, columns=32, ctas=2, threads=32, cluster=2),
    "deepseek-ai/DeepGEMM#429": launch(uneven, rows=2, columns=32, ctas=2, threads=32, cluster=2),
    "vllm-project/vllm#26026": launch(early_return, rows=3, columns=32, threads=96),
}
