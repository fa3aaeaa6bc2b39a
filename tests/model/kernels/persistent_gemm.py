"""Persistent warp-specialised GEMM for sm_100a: the twin of the kernels that two public studies timed on a B200.

C[m, n] = sum over k of A[m, k] * B[n, k], A and B K-major, C N-major, for 8- and 16-bit floats, and for E2M1 with one
UE8M0 scale per 16 elements of K. With ``two_cta`` it has the structure of NVIDIA's persistent CuTe DSL examples:

- 192 threads: warps 0-3 store, warp 4 issues MMAs, warp 5 loads.
- A static schedule of clusters, M fastest: cluster i of G has the tiles i, i + G, ...
- Accumulators: two in tensor memory, one for E2M1. A tile is released after its last subtile is loaded. (NVIDIA's
  source has two for E2M1 with N < 256, too, but the published times are those of one: 49.8 us for 4096 x 7168 x 257 in
  tiles of 256 x 64, of which one accumulator gives 48 and two give 34.)
- Stages: what shared memory holds beside two subtiles of C; what is left over holds further subtiles.
- Subtiles of C go through shared memory; TMA stores of ``c_stages - 1`` subtiles may be on their way.
- A cluster of 2x2 multicasts A and its scales over N; the pair multicasts B's scales.

Without ``two_cta`` and with one tile it is the main loop of one CTA of 128 x N, with a K as long as one likes.
Waits have no preceding test: a test that fails changes what the warp executes, but not what it waits for.
"""

import math

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cuda.bindings.driver import CUstream
from cutlass import pipeline, utils
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

K_MAJOR = OperandMajorMode.K
SMEM = tcgen05.OperandSource.SMEM
SF_TYPE = cutlass.Float8E8M0FNU
SF_VEC = 16

EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
THREADS = 32 * 6
EPILOGUE_BARRIER, TMEM_BARRIER = 1, 2

SHARED_BYTES = 227 * 1024
BARRIER_BYTES = 1024
SUBTILE_ELEMENTS = 4096
TMEM_COLUMNS = 512

TYPES = {  # operands, C, elements of K of one MMA
    "e2m1": (cutlass.Float4E2M1FN, cutlass.Float32, 64),
    "fp8": (cutlass.Float8E4M3FN, cutlass.Float8E4M3FN, 32),
    "fp16": (cutlass.Float16, cutlass.Float16, 16),
    "bf16": (cutlass.BFloat16, cutlass.BFloat16, 16),
}


class PersistentGemm:
    """The kernel for one type, tile and cluster.

    Args:
        kind: A key of TYPES.
        mma: M and N of one MMA, of both CTAs together where ``two_cta``.
        cluster: CTAs of a cluster along M and N.
        tile_k: Elements of K of a stage; by default 128 bytes.
        stages: Stages of A and B; by default as many as fit.
    """

    scales_are_arguments = True

    def __init__(self, kind, mma, cluster=(2, 1), *, two_cta=True, tile_k=None, stages=None):
        self.kind = kind
        self.type, self.c_type, self.mma_k = TYPES[kind]
        self.scaled = kind == "e2m1"
        self.two_cta = two_cta
        self.group = tcgen05.CtaGroup.TWO if two_cta else tcgen05.CtaGroup.ONE
        self.peers = 2 if two_cta else 1
        self.cluster = cluster
        self.mma = mma
        self.tile = (*mma, tile_k or 128 * 8 // self.type.width)
        self.cta_tile = (mma[0] // self.peers, *self.tile[1:])
        # Scales of B come in blocks of 128 rows.
        self.sfb_tile = (128, math.ceil(mma[1] / 128) * 128, self.tile[2])
        self.acc_stages = 1 if self.scaled else 2
        c_bytes = min(SUBTILE_ELEMENTS, self.cta_tile[0] * mma[1]) * self.c_type.width // 8
        rows = self.cta_tile[0] + mma[1] // self.peers
        stage_bytes = rows * self.tile[2] * self.type.width // 8
        if self.scaled:
            stage_bytes += (128 + self.sfb_tile[1]) * self.tile[2] // SF_VEC
        room = SHARED_BYTES - BARRIER_BYTES
        self.stages = stages or (room - 2 * c_bytes) // stage_bytes
        self.c_stages = min(8, (room - self.stages * stage_bytes) // c_bytes)
        if self.stages < 1 or self.c_stages < 2:
            raise ValueError(f"{kind} {self.tile}: {self.stages} stages and two subtiles of C do not fit")

    def mma_op(self, shape, group):
        """The instruction of a shape (M, N)."""
        shape = (*shape, self.mma_k)
        if self.kind == "e2m1":
            return tcgen05.MmaMXF4NVF4Op(SF_TYPE, shape, group, SMEM)
        if self.kind == "fp8":
            return tcgen05.MmaFP8Op(self.type, cutlass.Float32, shape, group, SMEM, K_MAJOR, K_MAJOR)
        return tcgen05.MmaF16BF16Op(self.type, cutlass.Float32, shape, group, SMEM, K_MAJOR, K_MAJOR)

    @cute.jit
    def __call__(
        self,
        a_ptr: cute.Pointer,
        b_ptr: cute.Pointer,
        sfa_ptr: cute.Pointer,
        sfb_ptr: cute.Pointer,
        c_ptr: cute.Pointer,
        m: cutlass.Int32,
        n: cutlass.Int32,
        k: cutlass.Int32,
        clusters: cutlass.Int32,
        stream: CUstream,
    ):
        """Launch at most ``clusters`` clusters; the pitches of A, B and C are multiples of 16 bytes."""
        k = cute.assume(k, divby=128 // self.type.width)
        c_n = cute.assume(n, divby=128 // self.c_type.width)
        a = cute.make_tensor(a_ptr, cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
        b = cute.make_tensor(b_ptr, cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
        c = cute.make_tensor(c_ptr, cute.make_layout((m, n, 1), stride=(c_n, 1, m * n)))
        c_layout = utils.LayoutEnum.ROW_MAJOR
        tiled_mma = cute.make_tiled_mma(self.mma_op(self.mma, self.group))
        a_layout = sm100_utils.make_smem_layout_a(tiled_mma, self.tile, self.type, self.stages)
        b_layout = sm100_utils.make_smem_layout_b(tiled_mma, self.tile, self.type, self.stages)
        epi_tile = sm100_utils.compute_epilogue_tile_shape(self.cta_tile, self.two_cta, c_layout, self.c_type)
        c_smem = sm100_utils.make_smem_layout_epi(self.c_type, c_layout, epi_tile, self.c_stages)
        shape = (*self.cluster, 1)
        cluster_layout = cute.tiled_divide(cute.make_layout(shape), (tiled_mma.thr_id.shape,))
        stage = (None, None, None, 0)
        a_op = sm100_utils.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id)
        b_op = sm100_utils.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id)
        loads = [
            cute.nvgpu.make_tiled_tma_atom_A(
                a_op, a, cute.slice_(a_layout, stage), self.tile, tiled_mma, cluster_layout.shape
            ),
            cute.nvgpu.make_tiled_tma_atom_B(
                b_op, b, cute.slice_(b_layout, stage), self.tile, tiled_mma, cluster_layout.shape
            ),
        ]
        stage_bytes = cute.size_in_bytes(self.type, cute.slice_(a_layout, stage))
        stage_bytes += cute.size_in_bytes(self.type, cute.slice_(b_layout, stage))
        # Each CTA of a pair needs all scales of B: they are cut as if it worked alone.
        sfb_mma = None
        sfb_cluster_layout = cute.tiled_divide(cute.make_layout(shape), (1,))
        sfa_layout = sfb_layout = None
        if cutlass.const_expr(self.scaled):
            sfb_mma = cute.make_tiled_mma(self.mma_op(self.sfb_tile[:2], tcgen05.CtaGroup.ONE))
            sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, self.tile, SF_VEC, self.stages)
            sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, self.tile, SF_VEC, self.stages)
            sfa = cute.make_tensor(sfa_ptr, blockscaled_utils.tile_atom_to_shape_SF(a.shape, SF_VEC))
            sfb = cute.make_tensor(sfb_ptr, blockscaled_utils.tile_atom_to_shape_SF(b.shape, SF_VEC))
            sfb_op = sm100_utils.cluster_shape_to_tma_atom_SFB(self.cluster, tiled_mma.thr_id)
            loads.append(
                cute.nvgpu.make_tiled_tma_atom_A(
                    a_op,
                    sfa,
                    cute.slice_(sfa_layout, stage),
                    self.tile,
                    tiled_mma,
                    cluster_layout.shape,
                    internal_type=cutlass.Int16,
                )
            )
            sfb_atom, sfb_coords = cute.nvgpu.make_tiled_tma_atom_B(
                sfb_op,
                sfb,
                cute.slice_(sfb_layout, stage),
                self.sfb_tile,
                sfb_mma,
                sfb_cluster_layout.shape,
                internal_type=cutlass.Int16,
            )
            if cutlass.const_expr(self.tile[1] == 192):
                # Tile t begins in block floor(1.5 t) of 128 rows, and needs that block and the next.
                (block, blocks), *rest_shape = sfb_coords.shape
                (block_stride, blocks_stride), *rest_stride = sfb_coords.stride
                pairs = cute.ceil_div(blocks, 3)
                sfb_coords = cute.make_tensor(
                    sfb_coords.iterator,
                    cute.make_layout(
                        ((block, ((2, 2), pairs)), *rest_shape),
                        stride=((block_stride, ((blocks_stride, blocks_stride), 3 * blocks_stride)), *rest_stride),
                    ),
                )
            loads.append((sfb_atom, sfb_coords))
            stage_bytes += cute.size_in_bytes(SF_TYPE, cute.slice_(sfa_layout, stage))
            stage_bytes += cute.size_in_bytes(SF_TYPE, cute.slice_(sfb_layout, stage))
        self.stage_bytes = stage_bytes * self.peers
        c_atom, c_coords = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), c, cute.select(c_smem, mode=[0, 1]), epi_tile
        )
        cluster_tile = (self.cta_tile[0] * self.cluster[0], self.cta_tile[1] * self.cluster[1])
        tiles_m, tiles_n = cute.ceil_div(m, cluster_tile[0]), cute.ceil_div(n, cluster_tile[1])
        self.kernel(
            (tiled_mma,) if sfb_mma is None else (tiled_mma, sfb_mma),
            tuple(atom for atom, _ in loads),
            tuple(coords for _, coords in loads),
            c_atom,
            c_coords,
            (cluster_layout, sfb_cluster_layout),
            (a_layout, b_layout) if sfa_layout is None else (a_layout, b_layout, sfa_layout, sfb_layout),
            c_smem,
            epi_tile,
            tiles_m,
            tiles_m * tiles_n,
        ).launch(
            grid=(*self.cluster, cutlass.min(clusters, tiles_m * tiles_n)),
            block=(THREADS, 1, 1),
            cluster=shape,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        mmas: tuple[cute.TiledMma, ...],
        atoms: tuple[cute.CopyAtom, ...],
        coords: tuple[cute.Tensor, ...],
        c_atom: cute.CopyAtom,
        mC: cute.Tensor,
        cluster_layouts: tuple[cute.Layout, ...],
        layouts: tuple[cute.Layout, ...],
        c_smem: cute.ComposedLayout,
        epi_tile: cute.Tile,
        tiles_m: cutlass.Int32,
        tiles: cutlass.Int32,
    ):
        """Work through the tiles of this cluster."""
        tiled_mma = mmas[0]
        cluster_layout, sfb_cluster_layout = cluster_layouts
        a_layout, b_layout = layouts[:2]
        sfa_layout, sfb_layout = layouts[2:] if cutlass.const_expr(self.scaled) else (None, None)
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block_x, block_y, first_tile = cute.arch.block_idx()
        _, _, clusters = cute.arch.grid_dim()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        in_cluster = cluster_layout.get_flat_coord(rank)
        sfb_in_cluster = sfb_cluster_layout.get_flat_coord(rank)
        peer = block_x % self.peers
        leads = peer == 0

        if warp == TMA_WARP:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)
            cpasync.prefetch_descriptor(c_atom)

        @cute.struct
        class Storage:
            ab_barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            acc_barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.acc_stages]
            dealloc_barrier: cute.struct.MemRange[cutlass.Int64, 1]
            tmem_address: cute.struct.MemRange[cutlass.Int32, 1]

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sC = smem.allocate_tensor(self.c_type, c_smem.outer, byte_alignment=1024, swizzle=c_smem.inner)
        sA = smem.allocate_tensor(self.type, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(self.type, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
        one_thread = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        receivers = cute.size(cluster_layout, mode=[1]) + cute.size(cluster_layout, mode=[2]) - 1
        ab_producer, ab_consumer = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, receivers),
            tx_count=self.stage_bytes,
            barrier_storage=storage.ab_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
            defer_sync=True,
        ).make_participants()
        # Before the last pipeline, whose creation synchronises the cluster.
        tmem = utils.TmemAllocator(
            storage.tmem_address.data_ptr(),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=TMEM_BARRIER, num_threads=32 * (EPILOGUE_WARPS + 1)),
            is_two_cta=self.two_cta,
            two_cta_tmem_dealloc_mbar_ptr=storage.dealloc_barrier.data_ptr(),
        )
        acc_pipeline = pipeline.PipelineUmmaAsync.create(
            num_stages=self.acc_stages,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_WARPS * self.peers),
            barrier_storage=storage.acc_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
        )

        slice_mma = tiled_mma.get_slice(peer)
        a_tiler, b_tiler = (self.tile[0], self.tile[2]), (self.tile[1], self.tile[2])
        gA = cute.local_tile(coords[0], a_tiler, (None, None, None))
        gB = cute.local_tile(coords[1], b_tiler, (None, None, None))
        gC = cute.local_tile(mC, self.tile[:2], (None, None, None))
        tCgC = slice_mma.partition_C(gC)
        a_ctas = cute.make_layout(cute.size(cluster_layout, mode=[2]))
        b_ctas = cute.make_layout(cute.size(cluster_layout, mode=[1]))
        multicast_a = None
        if cutlass.const_expr(self.cluster[1] > 1):
            multicast_a = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=2)
        # Source, target and multicast mask of each load.
        loads = [
            (*partition(atoms[0], in_cluster[2], a_ctas, sA, slice_mma.partition_A(gA)), multicast_a),
            (*partition(atoms[1], in_cluster[1], b_ctas, sB, slice_mma.partition_B(gB)), None),
        ]
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        sSFA = sSFB = None
        if cutlass.const_expr(self.scaled):
            sSFA = smem.allocate_tensor(SF_TYPE, sfa_layout, byte_alignment=128)
            sSFB = smem.allocate_tensor(SF_TYPE, sfb_layout, byte_alignment=128)
            gSFA = cute.local_tile(coords[2], a_tiler, (None, None, None))
            gSFB = cute.local_tile(coords[3], self.sfb_tile[1:], (None, None, None))
            sfb_ctas = cute.make_layout(cute.size(sfb_cluster_layout, mode=[1]))
            sfa = partition(atoms[2], in_cluster[2], a_ctas, sSFA, slice_mma.partition_A(gSFA))
            sfb = partition(atoms[3], sfb_in_cluster[1], sfb_ctas, sSFB, mmas[1].get_slice(0).partition_B(gSFB))
            multicast_sfb = cpasync.create_tma_multicast_mask(sfb_cluster_layout, sfb_in_cluster, mcast_mode=1)
            loads.append((*sfa, multicast_a))
            loads.append((*sfb, multicast_sfb if cutlass.const_expr(self.cluster[0] > 1) else None))
        acc_shape = tiled_mma.partition_shape_C(self.tile[:2])
        acc_layout = tiled_mma.make_fragment_C(cute.append(acc_shape, self.acc_stages)).layout
        k_tiles = cute.size(gA, mode=[3])
        across = self.cluster[0] // self.peers

        if warp == TMA_WARP:
            tile = first_tile
            while tile < tiles:
                x = tile % tiles_m * across + block_x // self.peers
                y = tile // tiles_m * self.cluster[1] + block_y
                rows = [x, y, x, y // 2 if cutlass.const_expr(self.tile[1] == 64) else y]
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    empty = ab_producer.acquire_and_advance()
                    for i, (target, source, mask) in enumerate(loads):
                        cute.copy(
                            atoms[i],
                            source[None, rows[i], k_tile, 0],
                            target[None, empty.index],
                            tma_bar_ptr=empty.barrier,
                            mcast_mask=mask,
                        )
                tile += clusters
            ab_producer.tail()

        if warp == MMA_WARP:
            tmem.wait_for_alloc()
            tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
            accumulators = cute.make_tensor(tmem_ptr, acc_layout)
            tCtSFA = tCtSFB = scale_copies = None
            if cutlass.const_expr(self.scaled):
                one_stage = (None, None, None, 0)
                sfa_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(accumulators)
                tCtSFA = cute.make_tensor(
                    cute.recast_ptr(sfa_ptr, dtype=SF_TYPE),
                    blockscaled_utils.make_tmem_layout_sfa(
                        tiled_mma, self.tile, SF_VEC, cute.slice_(sfa_layout, one_stage)
                    ),
                )
                sfb_ptr = sfa_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)
                sfb_tmem_layout = blockscaled_utils.make_tmem_layout_sfb(
                    tiled_mma, self.tile, SF_VEC, cute.slice_(sfb_layout, one_stage)
                )
                tCtSFB = cute.make_tensor(cute.recast_ptr(sfb_ptr, dtype=SF_TYPE), sfb_tmem_layout)
                s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(self.group), SF_TYPE)
                scale_copies = [scales_to_tmem(s2t_atom, sSFA, tCtSFA), scales_to_tmem(s2t_atom, sSFB, tCtSFB)]
            acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.acc_stages)
            tile = first_tile
            while tile < tiles:
                if leads:
                    tCtSFB_tile = tCtSFB
                    if cutlass.const_expr(self.scaled and self.tile[1] % 128 != 0):
                        # An odd tile begins in the middle of a block of 128 rows: 32 rows a column.
                        y = tile // tiles_m * self.cluster[1] + block_y
                        shifted = cute.recast_ptr(sfb_ptr + y % 2 * 2, dtype=SF_TYPE)
                        tCtSFB_tile = cute.make_tensor(shifted, sfb_tmem_layout)
                    acc_pipeline.producer_acquire(acc_state)
                    tCtAcc = accumulators[None, None, None, acc_state.index]
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
                    for _ in cutlass.range(k_tiles, unroll=1):
                        full = ab_consumer.wait_and_advance()
                        if cutlass.const_expr(self.scaled):
                            for copy, source, target in scale_copies:
                                cute.copy(copy, source[None, None, None, None, full.index], target)
                        for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                            if cutlass.const_expr(self.scaled):
                                tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, None, k_block].iterator)
                                tiled_mma.set(tcgen05.Field.SFB, tCtSFB_tile[None, None, k_block].iterator)
                            block = (None, None, k_block, full.index)
                            cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                            tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                        full.release()
                    acc_pipeline.producer_commit(acc_state)
                acc_state.advance()
                tile += clusters
            if leads:
                acc_pipeline.producer_tail(acc_state)

        if warp < EPILOGUE_WARPS:
            tmem.allocate(TMEM_COLUMNS)
            tmem.wait_for_alloc()
            tmem_ptr = tmem.retrieve_ptr(cutlass.Float32)
            accumulators = cute.make_tensor(tmem_ptr, acc_layout)
            acc_tiles = cute.flat_divide(accumulators[((None, None), 0, 0, None)], epi_tile)
            gC_tiles = cute.flat_divide(tCgC[((None, None), 0, 0, None, None, None)], epi_tile)
            load_atom = sm100_utils.get_tmem_load_op(
                self.cta_tile, utils.LayoutEnum.ROW_MAJOR, self.c_type, cutlass.Float32, epi_tile, self.two_cta
            )
            tiled_load = tcgen05.make_tmem_copy(load_atom, acc_tiles[(None, None, 0, 0, 0)])
            slice_load = tiled_load.get_slice(thread)
            tDtAcc = slice_load.partition_S(acc_tiles)
            tDgC = slice_load.partition_D(gC_tiles)
            registers = cute.make_rmem_tensor(tDgC[(None, None, None, 0, 0, 0, 0, 0)].shape, cutlass.Float32)
            values = cute.make_rmem_tensor(registers.shape, self.c_type)
            store_atom = sm100_utils.get_smem_store_op(
                utils.LayoutEnum.ROW_MAJOR, self.c_type, cutlass.Float32, tiled_load
            )
            tiled_store = cute.make_tiled_copy_D(store_atom, tiled_load)
            tRsC = tiled_store.get_slice(thread).partition_D(sC)
            tRrC = tiled_store.retile(values)
            bSsC, bSgC = cpasync.tma_partition(
                c_atom, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), cute.group_modes(gC_tiles, 0, 2)
            )
            acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.acc_stages)
            barrier = pipeline.NamedBarrier(barrier_id=EPILOGUE_BARRIER, num_threads=32 * EPILOGUE_WARPS)
            subtiles = cute.size(acc_tiles, mode=[3])
            buffer = cutlass.Int32(0)
            tile = first_tile
            while tile < tiles:
                x = tile % tiles_m * across + block_x // self.peers
                y = tile // tiles_m * self.cluster[1] + block_y
                acc_pipeline.consumer_wait(acc_state)
                for subtile in cutlass.range(subtiles, unroll=1):
                    cute.copy(tiled_load, tDtAcc[None, None, None, 0, subtile, acc_state.index], registers)
                    values.store(registers.load().to(self.c_type))
                    cute.copy(tiled_store, tRrC, tRsC[None, None, None, buffer])
                    cute.arch.fence_proxy("async.shared", space="cta")
                    barrier.arrive_and_wait()
                    if warp == 0:
                        cute.copy(c_atom, bSsC[None, buffer], bSgC[None, 0, subtile, x, y, 0])
                        cute.arch.cp_async_bulk_commit_group()
                        cute.arch.cp_async_bulk_wait_group(self.c_stages - 1, read=True)
                    barrier.arrive_and_wait()
                    buffer += 1
                    if buffer == self.c_stages:
                        buffer = cutlass.Int32(0)
                cute.arch.fence_view_async_tmem_load()
                with cute.arch.elect_one():
                    acc_pipeline.consumer_release(acc_state)
                acc_state.advance()
                tile += clusters
            tmem.relinquish_alloc_permit()
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(0)
            barrier.arrive_and_wait()
            tmem.free(tmem_ptr)


def partition(atom, coord, ctas, shared, tiles):
    """Shared and global tiles of a load, each scale once."""
    sX, gX = cpasync.tma_partition(atom, coord, ctas, cute.group_modes(shared, 0, 3), cute.group_modes(tiles, 0, 3))
    return cute.filter_zeros(sX), cute.filter_zeros(gX)


def scales_to_tmem(atom, shared, columns):
    """Copy of a stage's scales to tensor memory: (copy, sources of all stages, target)."""
    compact = cute.filter_zeros(columns)
    copy = tcgen05.make_s2t_copy(atom, compact)
    one = copy.get_slice(0)
    source = one.partition_S(cute.filter_zeros(shared))
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, source), one.partition_D(compact)
