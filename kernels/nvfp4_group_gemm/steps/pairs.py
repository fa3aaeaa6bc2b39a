"""NVFP4 grouped GEMM for sm_100a: pairs of CTAs with the weights on the MMA's M. The fourth step to ``sm100.py``.

``persistent.py`` has the tokens on the MMA's M, which is 128: 40 tokens are multiplied as 128. Here two CTAs share an
MMA (``cta_group::2``) of 256 rows of weights, and the tokens lie on its N. The structure is that of v5e of
gau-nernst/gpu-mode-kernels (with ``MOST_TOKENS = 256`` that of v6b); the code is our own. It was not run on a B200.

- A pair of CTAs keeps its 256 rows of weights and walks tiles of 128 tokens, groups by falling m; the grid is (rows of
  weights / 128, what fits 148 SMs). Eight stages; with tiles of 256 tokens five, and two MMAs on the same weights.
- The first loads of all stages do not wait. Weights come before tokens. The pair multicasts the tokens' scales.
- Three accumulators of 128 columns, scales from column 384 on.
- A thread of the epilogue has one row of weights; it stores 16 tokens, 32 bytes, into a C of its own, M-major with m
  padded to 16, and the call returns views of these. ``sm100.py`` transposes, and stores into C in place.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
import torch
from cutlass import Boolean, Float32, Int32, Int64, pipeline, utils
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as cute_nvgpu_ir
from cutlass.cute.nvgpu import cpasync, tcgen05
from task import input_t, output_t


def ceil_div(a, b):
    """Quotient, rounded up."""
    return (a + b - 1) // b


def pick(values, index):
    """The item at a run-time index."""
    chosen = values[0]
    for i in range(1, len(values)):
        chosen = cutlass.select_(index == i, values[i], chosen)
    return chosen


def map_type():
    """Type of a pointer to a tensor map."""
    descriptor = cute_nvgpu_ir.TmaDescriptorTiledType.get()
    return cute_ir.PtrType.get(descriptor, cute.AddressSpace.generic, 64)


def descriptor_address(atom):
    """Address of an atom's tensor map, a parameter of the kernel."""
    executable = cute_nvgpu_ir.atom_make_exec_tma(atom._trait.value)
    pointer = cute_nvgpu_ir.get_tma_desc_addr(map_type(), executable)
    return pointer.toint()


def descriptor_pointer(address):
    """Pointer to the tensor map at an address."""
    aligned = cute_ir.assume(cute_ir.ConstrainedIntType.get(64, 64), address.ir_value())
    return cute_ir.inttoptr(map_type(), aligned)


def scales_to_tmem(atom, shared, columns):
    """Copy of a stage's scales to tensor memory: (copy, sources of all stages, target)."""
    compact = cute.filter_zeros(columns)
    copy = tcgen05.make_s2t_copy(atom, compact)
    source = copy.get_slice(0).partition_S(cute.filter_zeros(shared))
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, source), copy.get_slice(0).partition_D(compact)


MOST_TOKENS = 128

SMS = 148
WEIGHTS, TILE_K = 256, 256
MMA = (WEIGHTS, 128, 64)
CLUSTER = (2, 1)
AB, SF, C = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16
SF_VEC = 16
STAGES = {128: 8, 256: 5}

ACCUMULATORS = 3
TMEM_COLUMNS, FIRST_SF_COLUMN = 512, 384
CHUNK = 64  # columns of a load of tensor memory
STORED = 16  # tokens of a store of 32 bytes

EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
THREADS = 192
TMEM_BARRIER = 1


def partition(atom, coord, ctas, shared, tiles):
    """Shared and global tiles of a load, each scale once."""
    sX, gX = cpasync.tma_partition(atom, coord, ctas, cute.group_modes(shared, 0, 3), cute.group_modes(tiles, 0, 3))
    return cute.filter_zeros(sX), cute.filter_zeros(gX)


@cute.jit
def find_tile(groups: tuple[tuple[Int64, ...], ...], first_tiles: tuple[Int32, ...], tile: Int32, pair: Int32):
    """Group of a tile of tokens, its k, the tile's number in it, and whether it has this pair's weights."""
    group = Int32(0)
    for g in cutlass.range_constexpr(1, len(groups)):
        group = cutlass.select_(tile >= first_tiles[g], Int32(g), group)
    n, k = (Int32(pick([one[i] for one in groups], group)) for i in (1, 2))
    return group, k, tile - pick(first_tiles[: len(groups)], group), pair * WEIGHTS < n


class GroupGemm:
    """The kernel for tiles of 128 or 256 tokens."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.halves = tokens // MMA[1]
        self.tile = (WEIGHTS, tokens, TILE_K)
        self.sfb_tile = (128, tokens, TILE_K)
        self.stages = STAGES[tokens]

    @cute.jit
    def __call__(
        self, groups: tuple[tuple[Int64, ...], ...], first_tiles: tuple[Int32, ...], ctas_x: Int32, ctas_y: Int32
    ):
        """Encode the maps of all groups and launch. A group: m, n, k, addresses of A, B, SFA, SFB, C."""
        two, one = tcgen05.CtaGroup.TWO, tcgen05.CtaGroup.ONE
        smem = tcgen05.OperandSource.SMEM
        tiled_mma = cute.make_tiled_mma(tcgen05.MmaMXF4NVF4Op(SF, MMA, two, smem))
        # Each CTA of the pair needs all scales of the tokens: they are cut as if it worked alone.
        sfb_mma = cute.make_tiled_mma(tcgen05.MmaMXF4NVF4Op(SF, (128, *MMA[1:]), one, smem))
        a_layout = sm100_utils.make_smem_layout_a(tiled_mma, self.tile, AB, self.stages)
        b_layout = sm100_utils.make_smem_layout_b(tiled_mma, self.tile, AB, self.stages)
        sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, self.tile, SF_VEC, self.stages)
        sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, self.tile, SF_VEC, self.stages)
        cluster_layout = cute.tiled_divide(cute.make_layout((*CLUSTER, 1)), (tiled_mma.thr_id.shape,))
        sfb_cluster_layout = cute.tiled_divide(cute.make_layout((*CLUSTER, 1)), (1,))
        stage = (None, None, None, 0)
        plain = cpasync.CopyBulkTensorTileG2SOp(two)
        multicast = sm100_utils.cluster_shape_to_tma_atom_SFB(CLUSTER, tiled_mma.thr_id)
        loads = []
        for group in groups:
            m, n = Int32(group[0]), Int32(group[1])
            k = cute.assume(Int32(group[2]), divby=TILE_K)
            weights, tokens = (
                cute.make_tensor(
                    cute.make_ptr(AB, address, cute.AddressSpace.gmem, assumed_align=16),
                    cute.make_layout((rows, k, 1), stride=(k, 1, rows * k)),
                )
                for rows, address in ((n, group[4]), (m, group[3]))
            )
            sf_weights, sf_tokens = (
                cute.make_tensor(
                    cute.make_ptr(SF, address, cute.AddressSpace.gmem, assumed_align=16),
                    blockscaled_utils.tile_atom_to_shape_SF(operand.shape, SF_VEC),
                )
                for operand, address in ((weights, group[6]), (tokens, group[5]))
            )
            make_a, make_b = cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B
            loads.append(
                (
                    make_a(plain, weights, cute.slice_(a_layout, stage), self.tile, tiled_mma, cluster_layout.shape),
                    make_b(plain, tokens, cute.slice_(b_layout, stage), self.tile, tiled_mma, cluster_layout.shape),
                    make_a(
                        plain,
                        sf_weights,
                        cute.slice_(sfa_layout, stage),
                        self.tile,
                        tiled_mma,
                        cluster_layout.shape,
                        internal_type=cutlass.Int16,
                    ),
                    make_b(
                        multicast,
                        sf_tokens,
                        cute.slice_(sfb_layout, stage),
                        self.sfb_tile,
                        sfb_mma,
                        sfb_cluster_layout.shape,
                        internal_type=cutlass.Int16,
                    ),
                )
            )
        operands = cute.size_in_bytes(AB, cute.slice_(a_layout, stage))
        operands += cute.size_in_bytes(AB, cute.slice_(b_layout, stage))
        scales = cute.size_in_bytes(SF, cute.slice_(sfa_layout, stage))
        scales += cute.size_in_bytes(SF, cute.slice_(sfb_layout, stage))
        self.stage_bytes = 2 * (operands + scales)
        self.kernel(
            (tiled_mma, sfb_mma),
            tuple(tuple(atom for atom, _ in group) for group in loads),
            tuple(coords for _, coords in loads[0]),
            (cluster_layout, sfb_cluster_layout),
            (a_layout, b_layout, sfa_layout, sfb_layout),
            groups,
            first_tiles,
        ).launch(grid=(ctas_x, ctas_y, 1), block=(THREADS, 1, 1), cluster=(*CLUSTER, 1))

    @cute.kernel
    def kernel(
        self,
        mmas: tuple[cute.TiledMma, ...],
        atoms: tuple[tuple[cute.CopyAtom, ...], ...],
        coords: tuple[cute.Tensor, ...],
        cluster_layouts: tuple[cute.Layout, ...],
        layouts: tuple[cute.Layout, ...],
        groups: tuple[tuple[Int64, ...], ...],
        first_tiles: tuple[Int32, ...],
    ):
        """Walk the tiles of tokens; ``first_tiles`` holds the first of each group and last the number of all."""
        tiled_mma, sfb_mma = mmas
        cluster_layout, sfb_cluster_layout = cluster_layouts
        a_layout, b_layout, sfa_layout, sfb_layout = layouts
        thread, _, _ = cute.arch.thread_idx()
        block_x, first_tile, _ = cute.arch.block_idx()
        _, step, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        sfb_in_cluster = sfb_cluster_layout.get_flat_coord(rank)
        pair, peer = block_x // 2, block_x % 2
        leads = peer == 0
        tiles = first_tiles[len(groups)]

        if warp == TMA_WARP:
            for group_atoms in atoms:
                for atom in group_atoms:
                    cpasync.prefetch_descriptor(atom)

        @cute.struct
        class Storage:
            load_barriers: cute.struct.MemRange[Int64, 2 * self.stages]
            acc_barriers: cute.struct.MemRange[Int64, 2 * ACCUMULATORS]
            dealloc_barrier: cute.struct.MemRange[Int64, 1]
            tmem_address: cute.struct.MemRange[Int32, 1]

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sA = smem.allocate_tensor(AB, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
        sB = smem.allocate_tensor(AB, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
        sSFA = smem.allocate_tensor(SF, sfa_layout, byte_alignment=128)
        sSFB = smem.allocate_tensor(SF, sfb_layout, byte_alignment=128)
        one_thread = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        loads = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
            tx_count=self.stage_bytes,
            barrier_storage=storage.load_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
            defer_sync=True,
        )
        # Before the last pipeline, whose creation synchronises the cluster.
        tmem = utils.TmemAllocator(
            storage.tmem_address.data_ptr(),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=TMEM_BARRIER, num_threads=32 * (EPILOGUE_WARPS + 1)),
            is_two_cta=True,
            two_cta_tmem_dealloc_mbar_ptr=storage.dealloc_barrier.data_ptr(),
        )
        accumulated = pipeline.PipelineUmmaAsync.create(
            num_stages=ACCUMULATORS,
            producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * EPILOGUE_WARPS),
            barrier_storage=storage.acc_barriers.data_ptr(),
            cta_layout_vmnk=cluster_layout,
        )
        # One accumulator of 128 columns
        acc_shape = tiled_mma.partition_shape_C(MMA[:2])
        acc_layout = tiled_mma.make_fragment_C(acc_shape).layout

        if warp == TMA_WARP:
            slice_mma = tiled_mma.get_slice(peer)
            tiles_of = ((WEIGHTS, TILE_K), (self.tokens, TILE_K))
            gA, gB, gSFA, gSFB = (cute.local_tile(coords[i], tiles_of[i % 2], (None, None, None)) for i in range(4))
            alone = cute.make_layout(1)
            tAsA, tAgA = partition(atoms[0][0], 0, alone, sA, slice_mma.partition_A(gA))
            tBsB, tBgB = partition(atoms[0][1], 0, alone, sB, slice_mma.partition_B(gB))
            tAsSFA, tAgSFA = partition(atoms[0][2], 0, alone, sSFA, slice_mma.partition_A(gSFA))
            both = cute.make_layout(cute.size(sfb_cluster_layout, mode=[1]))
            tBsSFB, tBgSFB = partition(
                atoms[0][3], sfb_in_cluster[1], both, sSFB, sfb_mma.get_slice(0).partition_B(gSFB)
            )
            mask = cpasync.create_tma_multicast_mask(sfb_cluster_layout, sfb_in_cluster, mcast_mode=1)
            maps = [[descriptor_address(group[i]) for group in atoms] for i in range(4)]
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
            tile = first_tile
            while tile < tiles:
                group, k, y, mine = find_tile(groups, first_tiles, tile, pair)
                if mine:
                    a_map, b_map, sfa_map, sfb_map = (descriptor_pointer(pick(one, group)) for one in maps)
                    for k_tile in cutlass.range(k // TILE_K, unroll=1):
                        # A fresh stage needs no wait.
                        loads.producer_acquire(state, Boolean(state.count < self.stages))
                        at, mbar = state.index, loads.producer_get_barrier(state)
                        cute.copy(
                            atoms[0][0],
                            tAgA[None, pair, k_tile, 0],
                            tAsA[None, at],
                            tma_bar_ptr=mbar,
                            tma_desc_ptr=a_map,
                        )
                        cute.copy(
                            atoms[0][1],
                            tBgB[None, y, k_tile, 0],
                            tBsB[None, at],
                            tma_bar_ptr=mbar,
                            tma_desc_ptr=b_map,
                        )
                        cute.copy(
                            atoms[0][2],
                            tAgSFA[None, pair, k_tile, 0],
                            tAsSFA[None, at],
                            tma_bar_ptr=mbar,
                            tma_desc_ptr=sfa_map,
                        )
                        cute.copy(
                            atoms[0][3],
                            tBgSFB[None, y, k_tile, 0],
                            tBsSFB[None, at],
                            tma_bar_ptr=mbar,
                            tma_desc_ptr=sfb_map,
                            mcast_mask=mask,
                        )
                        state.advance()
                tile += step
            loads.producer_tail(state)

        if warp == MMA_WARP:
            tmem.wait_for_alloc()
            tmem_ptr = tmem.retrieve_ptr(Float32)
            tCrA = tiled_mma.make_fragment_A(sA)
            tCrB = tiled_mma.make_fragment_B(sB)
            one_stage = (None, None, None, 0)
            sfa_columns = blockscaled_utils.make_tmem_layout_sfa(
                tiled_mma, self.tile, SF_VEC, cute.slice_(sfa_layout, one_stage)
            )
            sfb_columns = blockscaled_utils.make_tmem_layout_sfb(
                tiled_mma, self.tile, SF_VEC, cute.slice_(sfb_layout, one_stage)
            )
            sfa_ptr = tmem_ptr + FIRST_SF_COLUMN
            tCtSFA = cute.make_tensor(cute.recast_ptr(sfa_ptr, dtype=SF), sfa_columns)
            sfb_ptr = sfa_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)
            tCtSFB = cute.make_tensor(cute.recast_ptr(sfb_ptr, dtype=SF), sfb_columns)
            s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.TWO), SF)
            copies = [scales_to_tmem(s2t_atom, sSFA, tCtSFA), scales_to_tmem(s2t_atom, sSFB, tCtSFB)]
            full = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
            free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, ACCUMULATORS)
            done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, ACCUMULATORS)
            tile = first_tile
            while tile < tiles:
                _, k, _, mine = find_tile(groups, first_tiles, tile, pair)
                if mine and leads:
                    first = free.index * MMA[1]
                    accumulated.producer_acquire(free)
                    free.advance()
                    second = free.index * MMA[1]
                    if cutlass.const_expr(self.halves == 2):
                        accumulated.producer_acquire(free)
                        free.advance()
                    targets = [cute.make_tensor(tmem_ptr + column, acc_layout) for column in (first, second)]
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
                    for _ in cutlass.range(k // TILE_K, unroll=1):
                        loads.consumer_wait(full)
                        at = full.index
                        for copy, source, target in copies:
                            cute.copy(copy, source[None, None, None, None, at], target)
                        for k_block in cutlass.range_constexpr(TILE_K // MMA[2]):
                            tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, 0, k_block].iterator)
                            for half in cutlass.range_constexpr(self.halves):
                                tiled_mma.set(tcgen05.Field.SFB, tCtSFB[None, half, k_block].iterator)
                                acc = targets[half][None, 0, 0]
                                cute.gemm(
                                    tiled_mma, acc, tCrA[None, 0, k_block, at], tCrB[None, half, k_block, at], acc
                                )
                            tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                        loads.consumer_release(full)
                        full.advance()
                    for _ in cutlass.range_constexpr(self.halves):
                        accumulated.producer_commit(done)
                        done.advance()
                tile += step
            if leads:
                accumulated.producer_tail(free)

        if warp < EPILOGUE_WARPS:
            tmem.allocate(TMEM_COLUMNS)
            tmem.wait_for_alloc()
            tmem_ptr = tmem.retrieve_ptr(Float32)
            chunks = cute.zipped_divide(cute.make_tensor(tmem_ptr, acc_layout), ((128, CHUNK),))
            load = tcgen05.make_tmem_copy(
                cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32), chunks[None, 0]
            )
            tDtAcc = load.get_slice(thread).partition_S(chunks)
            registers = cute.make_rmem_tensor(cute.make_layout(((CHUNK, 1), 1)), Float32)
            values = cute.make_rmem_tensor(cute.make_layout((STORED, CHUNK // STORED)), C)
            full = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, ACCUMULATORS)
            tile = first_tile
            while tile < tiles:
                group, _, y, mine = find_tile(groups, first_tiles, tile, pair)
                if mine:
                    m, n = (Int32(pick([one[i] for one in groups], group)) for i in range(2))
                    pitch = ceil_div(m, STORED) * STORED
                    row = block_x * 128 + thread
                    target = pick([one[7] for one in groups], group) + Int64(row) * Int64(pitch) * 2
                    for half in cutlass.range_constexpr(self.halves):
                        accumulated.consumer_wait(full)
                        for chunk in cutlass.range_constexpr(MMA[1] // CHUNK):
                            part = tDtAcc[None, None, chunk]
                            source = cute.make_tensor(part.iterator + full.index * MMA[1], part.layout)
                            cute.copy(load, source, registers)
                            cute.arch.fence_view_async_tmem_load()
                            values.store(registers.load().to(C).reshape((STORED, CHUNK // STORED)))
                            for i in cutlass.range_constexpr(CHUNK // STORED):
                                token = y * self.tokens + half * MMA[1] + chunk * CHUNK + i * STORED
                                if token < pitch and row < n:
                                    pointer = cute.make_ptr(
                                        C, target + Int64(token) * 2, cute.AddressSpace.gmem, assumed_align=32
                                    )
                                    stored = cute.make_tensor(pointer, cute.make_layout(STORED))
                                    cute.autovec_copy(values[None, i], stored)
                        with cute.arch.elect_one():
                            accumulated.consumer_release(full)
                        full.advance()
                tile += step
            tmem.relinquish_alloc_permit()
            pipeline.NamedBarrier(barrier_id=TMEM_BARRIER + 1, num_threads=32 * EPILOGUE_WARPS).arrive_and_wait()
            tmem.free(tmem_ptr)


def plan(rows):
    """Tokens of a tile, and the grid, for rows of m, n, k and addresses."""
    ctas_x = max(ceil_div(row[1], WEIGHTS) for row in rows) * 2
    fit = max(1, SMS // ctas_x)
    wide = sum(ceil_div(row[0], 256) for row in rows)
    tokens = 256 if MOST_TOKENS == 256 and wide >= fit else 128
    return tokens, ctas_x, min(fit, sum(ceil_div(row[0], tokens) for row in rows))


def arguments(rows):
    """Run-time arguments."""
    tokens, ctas_x, ctas_y = plan(rows)
    first = [0]
    for m, *_ in rows:
        first.append(first[-1] + ceil_div(m, tokens))
    groups = tuple(tuple(Int64(value) for value in row) for row in rows)
    return groups, tuple(Int32(value) for value in first), Int32(ctas_x), Int32(ctas_y)


@functools.cache
def compiled(count, tokens):
    """The launcher for a number of groups and tokens of a tile."""
    return cute.compile(GroupGemm(tokens), *arguments([(128, WEIGHTS, TILE_K, 0, 0, 0, 0, 0)] * count))


def compile_kernel(problem_sizes):
    """Compile for the number of groups."""
    return compiled(len(problem_sizes), plan(problem_sizes)[0])


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C into a tensor of its own, M-major."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    outputs, rows = [], []
    for (m, n, k, _), (a, b, c), (sfa, sfb) in zip(problem_sizes, abc_tensors, sf_tensors, strict=True):
        if not m:
            outputs.append(c)
            continue
        padded = torch.empty((n, ceil_div(m, STORED) * STORED), dtype=torch.float16, device="cuda")
        outputs.append(padded[:, :m].t().unsqueeze(-1))
        addresses = [tensor.data_ptr() for tensor in (a, b, sfa, sfb, padded)]
        rows.append((m, n, k, *addresses))
    rows.sort(key=lambda row: -row[0])
    if rows:
        compiled(len(rows), plan(rows)[0])(*arguments(rows))
    return outputs
