"""Persistent warp-specialised GEMMs: static and dynamic (CLC) tile schedulers, TMEM double buffering, TMA epilogues.

Warps 0-3 store, warp 4 issues MMAs, warp 5 loads and warp 6 asks for the next tile where the scheduler is dynamic. The
epilogue goes through shared memory and a TMA store, or a TMA reduction where K is split over the third grid mode.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import torch
from cutlass import pipeline, utils
from cutlass.cute.nvgpu import cpasync, tcgen05

from .feature import Feature, Tensors, integers, on_device
from .gemm import argument, f16_op

EPILOGUE_WARPS = 4
MMA_WARP, TMA_WARP, SCHEDULER_WARP = 4, 5, 6
STAGES = 2
C_STAGES = 2
EPILOGUE_BARRIER, TMEM_BARRIER = 1, 2
CLC_BYTES = 16


class PersistentGemm:
    """C[m, n, l] (+)= A[m, k, l] * B[n, k, l] in tiles of 128 x ``tile_n`` per CTA, or 256 where ``two_cta``.

    :param dynamic: tiles come from cluster launch control; otherwise every ``clusters``-th belongs to a cluster.
    :param adds: C has one batch, to which all batches of A and B are added.
    """

    def __init__(
        self, *, dynamic: bool = False, adds: bool = False, two_cta: bool = False, tile_n: int = 64, clusters: int = 2
    ) -> None:
        self.dynamic = dynamic
        self.adds = adds
        self.two_cta = two_cta
        self.group = tcgen05.CtaGroup.TWO if two_cta else tcgen05.CtaGroup.ONE
        self.tile = (256 if two_cta else 128, tile_n, 64)
        self.cta_tile = (128, tile_n, 64)
        self.cluster = (2, 1) if two_cta else (1, 1)
        self.clusters = clusters
        self.threads = 32 * (7 if dynamic else 6)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor) -> None:
        self.a_type, self.b_type, self.c_type = a.element_type, b.element_type, c.element_type
        self.c_layout = utils.LayoutEnum.from_tensor(c)
        tiled_mma = cute.make_tiled_mma(f16_op(self.tile[:2], self.group))
        a_layout = sm100_utils.make_smem_layout_a(tiled_mma, self.tile, self.a_type, STAGES)
        b_layout = sm100_utils.make_smem_layout_b(tiled_mma, self.tile, self.b_type, STAGES)
        epi_tile = sm100_utils.compute_epilogue_tile_shape(self.cta_tile, self.two_cta, self.c_layout, self.c_type)
        c_smem = sm100_utils.make_smem_layout_epi(self.c_type, self.c_layout, epi_tile, C_STAGES)
        cluster_layout = cute.tiled_divide(cute.make_layout((*self.cluster, 1)), (tiled_mma.thr_id.shape,))
        stage = (None, None, None, 0)
        a_atom, a_coords = cute.nvgpu.make_tiled_tma_atom_A(
            sm100_utils.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id),
            a,
            cute.slice_(a_layout, stage),
            self.tile,
            tiled_mma,
            cluster_layout.shape,
        )
        b_atom, b_coords = cute.nvgpu.make_tiled_tma_atom_B(
            sm100_utils.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id),
            b,
            cute.slice_(b_layout, stage),
            self.tile,
            tiled_mma,
            cluster_layout.shape,
        )
        c_op = cpasync.CopyReduceBulkTensorTileS2GOp() if self.adds else cpasync.CopyBulkTensorTileS2GOp()
        c_atom, c_coords = cpasync.make_tiled_tma_atom(c_op, c, cute.select(c_smem, mode=[0, 1]), epi_tile)
        self.stage_bytes = (
            cute.size_in_bytes(self.a_type, cute.slice_(a_layout, stage))
            + cute.size_in_bytes(self.b_type, cute.slice_(b_layout, stage))
        ) * cute.size(tiled_mma.thr_id.shape)
        tiles = (
            cute.ceil_div(a.shape[0], self.cta_tile[0]),
            cute.ceil_div(b.shape[0], self.cta_tile[1]),
            a.shape[2],
        )
        cluster = (*self.cluster, 1)
        if cutlass.const_expr(self.dynamic):
            params = utils.ClcDynamicPersistentTileSchedulerParams(tiles, cluster)
            grid = utils.ClcDynamicPersistentTileScheduler.get_grid_shape(params)
        else:
            params = utils.PersistentTileSchedulerParams(tiles, cluster)
            grid = utils.StaticPersistentTileScheduler.get_grid_shape(params, self.clusters)
        self.kernel(
            tiled_mma,
            a_atom,
            a_coords,
            b_atom,
            b_coords,
            c_atom,
            c_coords,
            cluster_layout,
            a_layout,
            b_layout,
            c_smem,
            epi_tile,
            params,
        ).launch(grid=grid, block=(self.threads, 1, 1), cluster=cluster)

    @cute.kernel
    def kernel(
        self,
        tiled_mma: cute.TiledMma,
        a_atom: cute.CopyAtom,
        mA: cute.Tensor,
        b_atom: cute.CopyAtom,
        mB: cute.Tensor,
        c_atom: cute.CopyAtom,
        mC: cute.Tensor,
        cluster_layout: cute.Layout,
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
        c_smem: cute.ComposedLayout,
        epi_tile: cute.Tile,
        params: Any,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block_x, _, _ = cute.arch.block_idx()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        in_cluster = cluster_layout.get_flat_coord(rank)
        peers = cute.size(tiled_mma.thr_id.shape)
        peer = block_x % peers
        leads = peer == 0

        @cute.struct
        class Storage:
            ab_barriers: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
            acc_barriers: cute.struct.MemRange[cutlass.Int64, 4]
            clc_barriers: cute.struct.MemRange[cutlass.Int64, 2]
            dealloc_barrier: cute.struct.MemRange[cutlass.Int64, 1]
            tmem_address: cute.struct.MemRange[cutlass.Int32, 1]
            clc_response: cute.struct.Align[cute.struct.MemRange[cutlass.Int32, 4], 16]

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sC = smem.allocate_tensor(self.c_type, c_smem.outer, byte_alignment=1024, swizzle=c_smem.inner)
        sA = smem.allocate_tensor(self.a_type, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(self.b_type, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
        one_thread = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        ab_producer, ab_consumer = pipeline.PipelineTmaUmma.create(
            num_stages=STAGES,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
            tx_count=self.stage_bytes,
            barrier_storage=storage.ab_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
        ).make_participants()
        acc_pipeline = pipeline.PipelineUmmaAsync.create(
            num_stages=2,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32 * EPILOGUE_WARPS * peers),
            barrier_storage=storage.acc_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
        )
        clc_pipeline = None
        if cutlass.const_expr(self.dynamic):
            # Per cluster: the scheduler of its first CTA, and MMA, TMA and epilogue warps of every CTA.
            consumers = 32 * (1 + cute.size(cluster_layout) * (EPILOGUE_WARPS + 2))
            clc_pipeline = pipeline.PipelineClcFetchAsync.create(
                num_stages=1,
                producer_group=one_thread,
                consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, consumers),
                tx_count=CLC_BYTES,
                barrier_storage=storage.clc_barriers.data_ptr(),
                cta_layout_vmnk=cluster_layout,
            )
        tmem = utils.TmemAllocator(
            storage.tmem_address.data_ptr(),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=TMEM_BARRIER, num_threads=32 * (EPILOGUE_WARPS + 1)),
            is_two_cta=self.two_cta,
            two_cta_tmem_dealloc_mbar_ptr=storage.dealloc_barrier.data_ptr(),
        )

        gA = cute.local_tile(mA, cute.slice_(self.tile, (None, 0, None)), (None, None, None))
        gB = cute.local_tile(mB, cute.slice_(self.tile, (0, None, None)), (None, None, None))
        gC = cute.local_tile(mC, cute.slice_(self.tile, (None, None, 0)), (None, None, None))
        slice_mma = tiled_mma.get_slice(peer)
        tAsA, tAgA = cpasync.tma_partition(
            a_atom,
            in_cluster[2],
            cute.make_layout(cute.size(cluster_layout, mode=[2])),
            cute.group_modes(sA, 0, 3),
            cute.group_modes(slice_mma.partition_A(gA), 0, 3),
        )
        tBsB, tBgB = cpasync.tma_partition(
            b_atom,
            in_cluster[1],
            cute.make_layout(cute.size(cluster_layout, mode=[1])),
            cute.group_modes(sB, 0, 3),
            cute.group_modes(slice_mma.partition_B(gB), 0, 3),
        )
        tCgC = slice_mma.partition_C(gC)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtAcc_fake = tiled_mma.make_fragment_C(cute.append(tiled_mma.partition_shape_C(self.tile[:2]), 2))
        acc_layout = tCtAcc_fake.layout
        acc_columns = utils.get_num_tmem_alloc_cols(tCtAcc_fake)
        k_tiles = cute.size(gA, mode=[3])

        if cutlass.const_expr(self.dynamic):
            scheduler = utils.ClcDynamicPersistentTileScheduler.create(
                params, cute.arch.block_idx(), cute.arch.grid_dim(), storage.clc_response.data_ptr()
            )
            clc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        else:
            scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
        work = scheduler.initial_work_tile_info()

        if warp == TMA_WARP:
            while work.is_valid_tile:
                x, y, batch = work.tile_idx
                a_tile = tAgA[None, x // peers, None, batch]
                b_tile = tBgB[None, y, None, batch]
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    empty = ab_producer.acquire_and_advance()
                    cute.copy(a_atom, a_tile[None, k_tile], tAsA[None, empty.index], tma_bar_ptr=empty.barrier)
                    cute.copy(b_atom, b_tile[None, k_tile], tBsB[None, empty.index], tma_bar_ptr=empty.barrier)
                if cutlass.const_expr(self.dynamic):
                    clc_pipeline.consumer_wait(clc_state)
                    work = scheduler.get_current_work()
                    clc_pipeline.consumer_release(clc_state)
                    clc_state.advance()
                else:
                    scheduler.advance_to_next_work()
                    work = scheduler.get_current_work()
            ab_producer.tail()

        if cutlass.const_expr(self.dynamic):  # noqa: SIM102 (decided when tracing)
            if warp == SCHEDULER_WARP and rank == 0:
                fetch_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.ProducerConsumer, 1)
                while work.is_valid_tile:
                    clc_pipeline.producer_acquire(fetch_state)
                    scheduler.advance_to_next_work(clc_pipeline.producer_get_barrier(fetch_state))
                    fetch_state.advance()
                    clc_pipeline.consumer_wait(clc_state)
                    work = scheduler.get_current_work()
                    clc_pipeline.consumer_release(clc_state)
                    clc_state.advance()
                clc_pipeline.producer_tail(fetch_state)

        if warp == MMA_WARP:
            tmem.wait_for_alloc()
            tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
            accumulators = cute.make_tensor(tmem_ptr, acc_layout)
            acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 2)
            while work.is_valid_tile:
                if leads:
                    acc_pipeline.producer_acquire(acc_state)
                    tCtAcc = accumulators[None, None, None, acc_state.index]
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
                    for _ in cutlass.range(k_tiles, unroll=1):
                        full = ab_consumer.wait_and_advance()
                        for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                            block = (None, None, k_block, full.index)
                            cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                            tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                        full.release()
                    acc_pipeline.producer_commit(acc_state)
                acc_state.advance()
                if cutlass.const_expr(self.dynamic):
                    clc_pipeline.consumer_wait(clc_state)
                    work = scheduler.get_current_work()
                    clc_pipeline.consumer_release(clc_state)
                    clc_state.advance()
                else:
                    scheduler.advance_to_next_work()
                    work = scheduler.get_current_work()
            if leads:
                acc_pipeline.producer_tail(acc_state)

        if warp < EPILOGUE_WARPS:
            tmem.allocate(acc_columns)
            tmem.wait_for_alloc()
            tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
            accumulators = cute.make_tensor(tmem_ptr, acc_layout)
            acc_tiles = cute.flat_divide(accumulators[((None, None), 0, 0, None)], epi_tile)
            gC_tiles = cute.flat_divide(tCgC[((None, None), 0, 0, None, None, None)], epi_tile)
            load_atom = sm100_utils.get_tmem_load_op(
                self.cta_tile, self.c_layout, self.c_type, cutlass.Float32, epi_tile, self.two_cta
            )
            tiled_load = tcgen05.make_tmem_copy(load_atom, acc_tiles[(None, None, 0, 0, 0)])
            slice_load = tiled_load.get_slice(thread)
            tDtAcc = slice_load.partition_S(acc_tiles)
            tDgC = slice_load.partition_D(gC_tiles)
            registers = cute.make_rmem_tensor(tDgC[(None, None, None, 0, 0, 0, 0, 0)].shape, cutlass.Float32)
            values = cute.make_rmem_tensor(registers.shape, self.c_type)
            store_atom = sm100_utils.get_smem_store_op(self.c_layout, self.c_type, cutlass.Float32, tiled_load)
            tiled_store = cute.make_tiled_copy_D(store_atom, tiled_load)
            tRsC = tiled_store.get_slice(thread).partition_D(sC)
            tRrC = tiled_store.retile(values)
            bSsC, bSgC = cpasync.tma_partition(
                c_atom, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), cute.group_modes(gC_tiles, 0, 2)
            )
            acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 2)
            barrier = pipeline.NamedBarrier(barrier_id=EPILOGUE_BARRIER, num_threads=32 * EPILOGUE_WARPS)
            subtiles = cute.size(acc_tiles, mode=[3])
            stored = cutlass.Int32(0)
            while work.is_valid_tile:
                x, y, batch = work.tile_idx
                acc_pipeline.consumer_wait(acc_state)
                for subtile in cutlass.range(subtiles, unroll=1):
                    cute.copy(tiled_load, tDtAcc[None, None, None, 0, subtile, acc_state.index], registers)
                    values.store(registers.load().to(self.c_type))
                    buffer = stored % C_STAGES
                    cute.copy(tiled_store, tRrC, tRsC[None, None, None, buffer])
                    cute.arch.fence_proxy("async.shared", space="cta")
                    barrier.arrive_and_wait()
                    if warp == 0:
                        target = bSgC[None, 0, subtile, x // peers, y, 0 if self.adds else batch]
                        cute.copy(c_atom, bSsC[None, buffer], target)
                        cute.arch.cp_async_bulk_commit_group()
                        cute.arch.cp_async_bulk_wait_group(C_STAGES - 1, read=True)
                    barrier.arrive_and_wait()
                    stored += 1
                cute.arch.fence_view_async_tmem_load()
                acc_pipeline.consumer_release(acc_state)
                acc_state.advance()
                if cutlass.const_expr(self.dynamic):
                    clc_pipeline.consumer_wait(clc_state)
                    work = scheduler.get_current_work()
                    clc_pipeline.consumer_release(clc_state)
                    clc_state.advance()
                else:
                    scheduler.advance_to_next_work()
                    work = scheduler.get_current_work()
            tmem.relinquish_alloc_permit()
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(0)
            barrier.arrive_and_wait()
            tmem.free(tmem_ptr)


def persistent_feature(
    name: str,
    *,
    mnkl: tuple[int, int, int, int],
    c_type: torch.dtype = torch.float16,
    dynamic: bool = False,
    adds: bool = False,
    two_cta: bool = False,
    opcodes: tuple[str, ...],
) -> Feature:
    """``mnkl``: extents, the last that of the batch, or the number of parts of K where ``adds``."""
    m, n, k, batch = mnkl

    def kernel_inputs(seed: int) -> Tensors:
        shapes = {"a": (batch, m, k), "b": (batch, n, k)}
        return {key: integers(seed, shape, stream=i).half() for i, (key, shape) in enumerate(shapes.items())}

    def run(inputs: Tensors) -> Tensors:
        device = on_device(inputs)
        c = torch.zeros((1 if adds else batch, m, n), dtype=c_type, device="cuda")
        a, b, view = (tensor.permute(1, 2, 0) for tensor in (device["a"], device["b"], c))
        PersistentGemm(dynamic=dynamic, adds=adds, two_cta=two_cta)(argument(a), argument(b), argument(view))
        return {"c": c}

    def reference(inputs: Tensors) -> Tensors:
        c = inputs["a"].double() @ inputs["b"].double().transpose(1, 2)
        return {"c": (c.sum(0, keepdim=True) if adds else c).to(c_type)}

    return Feature(name, kernel_inputs, run, reference, opcodes)


STORE = "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
READ = r"cp.async.bulk.wait_group.read\s+1"
CLC = (
    "clusterlaunchcontrol.try_cancel.async.*multicast::cluster::all",
    "clusterlaunchcontrol.query_cancel.is_canceled",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid",
)

FEATURES = (
    # Two clusters share twelve tiles: each accumulator stage is used three times.
    persistent_feature("persistent_static", mnkl=(256, 192, 320, 2), opcodes=(STORE, READ)),
    persistent_feature(
        "persistent_static_two_cta",
        mnkl=(512, 192, 192, 2),
        two_cta=True,
        opcodes=(STORE, READ, "tcgen05.mma.cta_group::2"),
    ),
    persistent_feature("persistent_dynamic", mnkl=(256, 192, 192, 2), dynamic=True, opcodes=(STORE, *CLC)),
    persistent_feature(
        "persistent_dynamic_two_cta", mnkl=(512, 192, 192, 1), dynamic=True, two_cta=True, opcodes=(STORE, *CLC)
    ),
    persistent_feature(
        "split_k_tma_reduce", mnkl=(128, 128, 128, 3), c_type=torch.float32, adds=True, opcodes=(REDUCE, READ)
    ),
)
