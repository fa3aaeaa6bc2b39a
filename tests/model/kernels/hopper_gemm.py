"""A family of persistent warp-specialised GEMMs for sm_90a, to hold the model of a Hopper GPU against.

C[m, n] = sum over k of A[m, k] * B[n, k], all contiguous along their second extent; fp16, bf16, or fp8 (E4M3) with
fp16 C. Warpgroup 0 loads with TMA (one warp), warpgroups 1 and 2 multiply:

- ``cooperative``: both on one tile, each on half of its rows;
- ``pingpong``: each on a tile of its own, one multiplies while the other stores.

A cluster of (x, y) CTAs multicasts A over its y columns and B over its x rows. Cluster i of G has the tiles i, i + G,
..., M fastest. C goes through shared memory, two subtiles for each storing group, to TMA stores.
"""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import pipeline, utils
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp
from cutlass.utils import hopper_helpers

TYPES = {  # operands, C
    "fp8": (cutlass.Float8E4M3FN, cutlass.Float16),
    "fp16": (cutlass.Float16, cutlass.Float16),
    "bf16": (cutlass.BFloat16, cutlass.BFloat16),
}
ROW = utils.LayoutEnum.ROW_MAJOR
THREADS = 384
CONSUMERS = 2
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
STORE_BARRIER = 1
SUBTILE_COLUMNS = 32
C_BUFFERS = 2


class HopperGemm:
    """The kernel for one type, tile (M, N, K), number of stages, cluster (M, N) and schedule."""

    scales_are_arguments = False

    def __init__(self, kind, tile, stages, cluster=(1, 1), schedule="cooperative"):
        self.kind = kind
        self.type, self.c_type = TYPES[kind]
        self.tile = tile
        self.stages = stages
        self.cluster = cluster
        self.pingpong = schedule == "pingpong"
        # Warpgroups that share a tile.
        self.together = 1 if self.pingpong else CONSUMERS
        self.epi_tile = (64 * self.together, min(SUBTILE_COLUMNS, tile[1]))
        self.buffers = C_BUFFERS * (CONSUMERS // self.together)
        if tile[0] % self.epi_tile[0] or tile[1] % self.epi_tile[1]:
            raise ValueError(f"{schedule} does not divide a tile of {tile}")

    @cute.jit
    def __call__(
        self,
        a_ptr: cute.Pointer,
        b_ptr: cute.Pointer,
        c_ptr: cute.Pointer,
        m: cutlass.Int32,
        n: cutlass.Int32,
        k: cutlass.Int32,
        clusters: cutlass.Int32,
        stream: CUstream,
    ):
        """Launch at most ``clusters`` clusters; the pitches are multiples of 16 bytes."""
        k = cute.assume(k, divby=128 // self.type.width)
        n = cute.assume(n, divby=8)
        a = cute.make_tensor(a_ptr, cute.make_layout((m, k), stride=(k, 1)))
        b = cute.make_tensor(b_ptr, cute.make_layout((n, k), stride=(k, 1)))
        c = cute.make_tensor(c_ptr, cute.make_layout((m, n), stride=(n, 1)))
        tiled_mma = hopper_helpers.make_trivial_tiled_mma(
            self.type,
            self.type,
            OperandMajorMode.K,
            OperandMajorMode.K,
            cutlass.Float32,
            (self.together, 1, 1),
            (64, self.tile[1]),
        )
        a_layout = hopper_helpers.make_smem_layout_a(ROW, self.tile, self.type, self.stages)
        b_layout = hopper_helpers.make_smem_layout_b(ROW, self.tile, self.type, self.stages)
        c_layout = hopper_helpers.make_smem_layout_epi(self.c_type, ROW, self.epi_tile, self.buffers)
        a_atom, a_coords = self.load(a, a_layout, self.tile[0], self.cluster[1])
        b_atom, b_coords = self.load(b, b_layout, self.tile[1], self.cluster[0])
        c_atom, c_coords = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), c, cute.slice_(c_layout, (None, None, 0)), self.epi_tile
        )
        stage = (None, None, 0)
        self.stage_bytes = cute.size_in_bytes(self.type, cute.slice_(a_layout, stage))
        self.stage_bytes += cute.size_in_bytes(self.type, cute.slice_(b_layout, stage))
        shape = (*self.cluster, 1)
        tiles_m = cute.ceil_div(m, self.tile[0] * self.cluster[0])
        tiles = tiles_m * cute.ceil_div(n, self.tile[1] * self.cluster[1])
        self.kernel(
            tiled_mma,
            (a_atom, b_atom, c_atom),
            (a_coords, b_coords, c_coords),
            (a_layout, b_layout, c_layout),
            cute.make_layout(shape),
            tiles_m,
            tiles,
        ).launch(
            grid=(*self.cluster, cutlass.min(clusters, tiles)),
            block=(THREADS, 1, 1),
            cluster=shape,
            min_blocks_per_mp=1,
            stream=stream,
        )

    def load(self, tensor, layout, rows, receivers):
        """TMA atom and coordinates of an operand."""
        op = cpasync.CopyBulkTensorTileG2SMulticastOp() if receivers > 1 else cpasync.CopyBulkTensorTileG2SOp()
        tile = (rows, self.tile[2])
        return cpasync.make_tiled_tma_atom(
            op, tensor, cute.slice_(layout, (None, None, 0)), tile, num_multicast=receivers
        )

    @cute.kernel
    def kernel(
        self,
        tiled_mma: cute.TiledMma,
        atoms: tuple[cute.CopyAtom, ...],
        coords: tuple[cute.Tensor, ...],
        layouts: tuple[cute.ComposedLayout, ...],
        cluster_layout: cute.Layout,
        tiles_m: cutlass.Int32,
        tiles: cutlass.Int32,
    ):
        """Work through the tiles of this cluster."""
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block_x, block_y, first_tile = cute.arch.block_idx()
        _, _, clusters = cute.arch.grid_dim()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        in_cluster = cluster_layout.get_flat_coord(rank)
        if warp == 0:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)

        a_layout, b_layout, c_layout = layouts
        smem = utils.SmemAllocator()
        barriers = smem.allocate_array(cutlass.Int64, 2 * self.stages)
        order = smem.allocate_array(cutlass.Int64, CONSUMERS)
        sA = smem.allocate_tensor(self.type, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(self.type, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
        sC = smem.allocate_tensor(self.c_type, c_layout.outer, byte_alignment=1024, swizzle=c_layout.inner)
        if thread == 0:
            for i in cutlass.range_constexpr(CONSUMERS):
                cute.arch.mbarrier_init(order + i, 128)
        receivers = self.cluster[0] + self.cluster[1] - 1
        loads = pipeline.PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4 * self.together * receivers),
            tx_count=self.stage_bytes,
            barrier_storage=barriers,
            cta_layout_vmnk=cute.make_layout((1, *cluster_layout.shape)),
        )

        a_tiles = cute.local_tile(coords[0], (self.tile[0], self.tile[2]), (None, None))
        b_tiles = cute.local_tile(coords[1], (self.tile[1], self.tile[2]), (None, None))
        k_tiles = cute.size(a_tiles, mode=[3])

        if warp < 4:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                a_cut = (in_cluster[1], cute.make_layout(self.cluster[1]))
                b_cut = (in_cluster[0], cute.make_layout(self.cluster[0]))
                to_a, from_a = cpasync.tma_partition(
                    atoms[0], *a_cut, cute.group_modes(sA, 0, 2), cute.group_modes(a_tiles, 0, 2)
                )
                to_b, from_b = cpasync.tma_partition(
                    atoms[1], *b_cut, cute.group_modes(sB, 0, 2), cute.group_modes(b_tiles, 0, 2)
                )
                a_mask = b_mask = None
                if cutlass.const_expr(self.cluster[1] > 1):
                    a_mask = cute.make_layout_image_mask(cluster_layout, in_cluster, mode=1)
                if cutlass.const_expr(self.cluster[0] > 1):
                    b_mask = cute.make_layout_image_mask(cluster_layout, in_cluster, mode=0)
                state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
                tile = first_tile
                while tile < tiles:
                    x = tile % tiles_m * self.cluster[0] + block_x
                    y = tile // tiles_m * self.cluster[1] + block_y
                    for k_tile in cutlass.range(k_tiles, unroll=1):
                        loads.producer_acquire(state)
                        barrier = loads.producer_get_barrier(state)
                        cute.copy(
                            atoms[0],
                            from_a[(None, x, k_tile)],
                            to_a[(None, state.index)],
                            tma_bar_ptr=barrier,
                            mcast_mask=a_mask,
                        )
                        cute.copy(
                            atoms[1],
                            from_b[(None, y, k_tile)],
                            to_b[(None, state.index)],
                            tma_bar_ptr=barrier,
                            mcast_mask=b_mask,
                        )
                        loads.producer_commit(state)
                        state.advance()
                    tile += clusters
                loads.producer_tail(state)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            consumer = warp // 4 - 1
            # Which of those that work side by side, and its thread among those that share a tile.
            which = consumer if cutlass.const_expr(self.pingpong) else 0
            member = thread % 128 if cutlass.const_expr(self.pingpong) else thread - 128
            # Operands in shared memory are addressed by the warpgroup: their slice is that of its first thread.
            slice_mma = tiled_mma.get_slice(member // 128 * 128)
            tCrA = tiled_mma.make_fragment_A(slice_mma.partition_A(sA))
            tCrB = tiled_mma.make_fragment_B(slice_mma.partition_B(sB))
            acc = cute.make_rmem_tensor(tiled_mma.partition_shape_C(self.tile[:2]), cutlass.Float32)

            c_tiles = cute.local_tile(coords[2], self.tile[:2], (None, None))
            # ((rows, columns of a subtile), subtiles along M, along N, tiles ...)
            parts = cute.group_modes(cute.flat_divide(c_tiles, self.epi_tile), 0, 2)
            from_c, to_c = cpasync.tma_partition(atoms[2], 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), parts)
            store_op = hopper_helpers.get_smem_store_op(ROW, self.c_type, cutlass.Float32)
            tiled_c = cute.make_tiled_copy_C_atom(
                cute.make_copy_atom(StMatrix8x8x16bOp(False, 4), self.c_type), tiled_mma
            )
            tiled_store = cute.make_tiled_copy_S(store_op, tiled_c)
            slice_store = tiled_store.get_slice(member)
            tRsC = slice_store.partition_D(sC)
            tRrAcc = tiled_store.retile(acc)
            piece = cute.make_layout(cute.shape(slice_store.partition_S(sC))[:3])
            values = cute.make_rmem_tensor(piece, self.c_type)
            size = cute.size(piece)
            barrier = pipeline.NamedBarrier(barrier_id=STORE_BARRIER + which, num_threads=128 * self.together)
            rows = self.tile[0] // self.epi_tile[0]
            columns = self.tile[1] // self.epi_tile[1]

            count = which * k_tiles
            parity = cutlass.Int32(1) - which
            buffer = cutlass.Int32(0)
            tile = first_tile + which * clusters
            while tile < tiles:
                if cutlass.const_expr(self.pingpong):
                    cute.arch.mbarrier_wait(order + which, parity)
                    parity ^= 1
                full = pipeline.PipelineState(self.stages, count, count % self.stages, count // self.stages & 1)
                empty = full.clone()
                loads.consumer_wait(full)
                tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
                warpgroup.fence()
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    block = (None, None, k_block, full.index)
                    cute.gemm(tiled_mma, acc, tCrA[block], tCrB[block], acc)
                    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                full.advance()
                for _ in cutlass.range(k_tiles - 1, unroll=1):
                    loads.consumer_wait(full)
                    warpgroup.fence()
                    for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                        block = (None, None, k_block, full.index)
                        cute.gemm(tiled_mma, acc, tCrA[block], tCrB[block], acc)
                    warpgroup.commit_group()
                    warpgroup.wait_group(1)
                    loads.consumer_release(empty)
                    full.advance()
                    empty.advance()
                if cutlass.const_expr(self.pingpong):
                    cute.arch.mbarrier_arrive(order + (1 - which))
                warpgroup.wait_group(0)
                loads.consumer_release(empty)
                count += k_tiles * (CONSUMERS // self.together)

                x = tile % tiles_m * self.cluster[0] + block_x
                y = tile // tiles_m * self.cluster[1] + block_y
                for row in cutlass.range_constexpr(rows):
                    for column in cutlass.range_constexpr(columns):
                        for i in cutlass.range_constexpr(size):
                            values[i] = tRrAcc[(row * columns + column) * size + i].to(self.c_type)
                        place = which * C_BUFFERS + buffer
                        cute.copy(tiled_store, values, tRsC[(None, None, None, place)])
                        cute.arch.fence_proxy("async.shared", space="cta")
                        barrier.arrive_and_wait()
                        if member < 32:
                            with cute.arch.elect_one():
                                cute.copy(atoms[2], from_c[(None, place)], to_c[(None, row, column, x, y)])
                                cute.arch.cp_async_bulk_commit_group()
                                cute.arch.cp_async_bulk_wait_group(C_BUFFERS - 1, read=True)
                        barrier.arrive_and_wait()
                        buffer ^= 1
                tile += clusters * (CONSUMERS // self.together)
            if member < 32:
                with cute.arch.elect_one():
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
