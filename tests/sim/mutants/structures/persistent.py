"""NVFP4 grouped GEMM for sm_100a, persistent: a static tile scheduler and two accumulators in TMEM.

One launch writes the tensor maps of every group, a second one computes: CTA b takes the tiles b, b + CTAs, ... of all
groups, numbered as in `first_tiles`. Warps 0-3 store C, warp 4 issues MMAs, warp 5 loads. While the epilogue empties
one accumulator, the MMAs of the next tile fill the other.

Barriers: full/empty (STAGES k-tiles), acc_full/acc_empty (ACC_STAGES accumulators; each epilogue warp arrives once).
Preconditions: l == 1, n % 128 == 0, k % 256 == 0; m >= 0 is free.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
import torch
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from task import input_t, output_t

try:
    from cutlass.memory import SmemAllocator
    from cutlass.tensor_utils import TensorMapManager, TensorMapUpdateMode
except ImportError:
    from cutlass.utils import SmemAllocator, TensorMapManager, TensorMapUpdateMode

AB_DTYPE, SF_DTYPE, C_DTYPE = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16
SF_VEC = 16
TILE_M, TILE_N, TILE_K, MMA_K = 128, 128, 256, 64
TILER_MNK = (TILE_M, TILE_N, TILE_K)
STAGES, ACC_STAGES = 3, 2
STAGE_BYTES = (TILE_M + TILE_N) * (TILE_K // 2 + TILE_K // SF_VEC)
TMEM_COLUMNS = 512  # two accumulators of 128 and 32 columns of scale factors, in a power of two
EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
THREADS = 32 * (EPILOGUE_WARPS + 2)
NUM_MAPS, MAP_BYTES = 4, 128
FIRST_TILE, M, N, K, A, B, SFA, SFB, C = range(9)
COLUMNS = 9


def ceil_div(a, b):
    """Quotient rounded up."""
    return (a + b - 1) // b


def first_tiles(problem_sizes):
    """The number of tiles before each group, and last that of all tiles."""
    first = [0]
    for m, n, _, _ in problem_sizes:
        first.append(first[-1] + ceil_div(m, TILE_M) * ceil_div(n, TILE_N))
    return first


def make_operands(a_address, b_address, sfa_address, sfb_address, m, n, k):
    """Global tensors A (m, k, 1), B (n, k, 1) and their scale factors."""
    k = cute.assume(k, divby=TILE_K)

    def pointer(dtype, address):
        return cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)

    a = cute.make_tensor(pointer(AB_DTYPE, a_address), cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
    b = cute.make_tensor(pointer(AB_DTYPE, b_address), cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
    sfa = cute.make_tensor(pointer(SF_DTYPE, sfa_address), blockscaled_utils.tile_atom_to_shape_SF(a.shape, SF_VEC))
    sfb = cute.make_tensor(pointer(SF_DTYPE, sfb_address), blockscaled_utils.tile_atom_to_shape_SF(b.shape, SF_VEC))
    return a, b, sfa, sfb


@cute.jit
def find_group(table: cute.Tensor, group: Int32, tile: Int32):
    """The group of a tile, at or behind `group`; the row behind the last group holds the number of all tiles."""
    while tile >= Int32(table[group + 1, FIRST_TILE]):
        group += 1
    return group


@cute.jit
def tile_coords(table: cute.Tensor, group: Int32, tile: Int32):
    """The tile's coordinates (x, y) within its group; x, along m, is the faster one."""
    tile_in_group = tile - Int32(table[group, FIRST_TILE])
    tiles_m = ceil_div(Int32(table[group, M]), TILE_M)
    y = tile_in_group // tiles_m
    return tile_in_group - y * tiles_m, y


def fence_after_sync():
    """Order the tcgen05 operations that follow behind the synchronisation just passed."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def fence_before_sync():
    """Order this thread's tcgen05 operations before the synchronisation that follows."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


@cute.kernel
def maps_kernel(
    atom_a: cute.CopyAtom, atom_b: cute.CopyAtom, atom_sfa: cute.CopyAtom, atom_sfb: cute.CopyAtom,
    table: cute.Tensor, maps: cute.Tensor,
):  # fmt: skip
    """Write the four tensor maps of one group, one a warp."""
    thread, _, _ = cute.arch.thread_idx()
    group, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = thread % 32
    smem = SmemAllocator()
    sMaps = smem.allocate_tensor(Int64, cute.make_layout((MAP_BYTES // 8, NUM_MAPS)), byte_alignment=MAP_BYTES)
    manager = TensorMapManager(TensorMapUpdateMode.SMEM, MAP_BYTES)
    m, n, k = Int32(table[group, M]), Int32(table[group, N]), Int32(table[group, K])
    operands = make_operands(table[group, A], table[group, B], table[group, SFA], table[group, SFB], m, n, k)
    atoms = (atom_a, atom_b, atom_sfa, atom_sfb)
    if m > 0:
        for i in cutlass.range_constexpr(NUM_MAPS):
            if warp == i:
                staged = sMaps[None, i].iterator
                if lane < MAP_BYTES // 8:
                    sMaps[lane, i] = Int64(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cpasync.copy_tensormap(atoms[i], staged)
                cute.arch.sync_warp()
                cpasync.update_tma_descriptor(atoms[i], operands[i], staged)
                cute.arch.sync_warp()
                cpasync.cp_fence_tma_desc_release(manager.get_tensormap_ptr(maps[None, i, group].iterator), staged)


@cute.kernel
def gemm_kernel(
    tiled_mma: cute.TiledMma,
    atoms: tuple[cute.CopyAtom, ...],
    coords: tuple[cute.Tensor, ...],
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    sfa_layout: cute.Layout,
    sfb_layout: cute.Layout,
    table: cute.Tensor,
    maps: cute.Tensor,
    num_tiles: Int32,
):
    """Compute the tiles cta, cta + CTAs, ... (see the module's docstring)."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

    smem = SmemAllocator()
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    acc_full = smem.allocate_array(Int64, ACC_STAGES)
    acc_empty = smem.allocate_array(Int64, ACC_STAGES)
    tmem_address = smem.allocate_array(Int32, 1)
    sA = smem.allocate_tensor(AB_DTYPE, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(AB_DTYPE, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    sSFA = smem.allocate_tensor(SF_DTYPE, sfa_layout, byte_alignment=128)
    sSFB = smem.allocate_tensor(SF_DTYPE, sfb_layout, byte_alignment=128)

    if warp == MMA_WARP:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, 1)
            for i in cutlass.range_constexpr(ACC_STAGES):
                cute.arch.mbarrier_init(acc_full + i, 1)
                cute.arch.mbarrier_init(acc_empty + i, EPILOGUE_WARPS)
        cute.arch.mbarrier_init_fence()
        cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address)
        cute.arch.relinquish_tmem_alloc_permit()
        fence_before_sync()
    cute.arch.sync_threads()
    fence_after_sync()

    tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
    thr_mma = tiled_mma.get_slice(0)
    acc_shape = tiled_mma.partition_shape_C((TILE_M, TILE_N))
    # ((MMA_M, MMA_N), 1, 1, ACC_STAGE)
    accumulators = cute.make_tensor(tmem_ptr, tiled_mma.make_fragment_C(cute.append(acc_shape, ACC_STAGES)).layout)

    if warp == TMA_WARP:
        manager = TensorMapManager(TensorMapUpdateMode.SMEM, MAP_BYTES)
        shared = (sA, sB, sSFA, sSFB)
        source, target = [], []
        for i in cutlass.range_constexpr(NUM_MAPS):
            rows = TILE_M if i % 2 == 0 else TILE_N
            tiles = cute.local_tile(coords[i], (rows, TILE_K), (None, None, None))
            part = thr_mma.partition_A(tiles) if i % 2 == 0 else thr_mma.partition_B(tiles)
            t_smem, t_gmem = cpasync.tma_partition(
                atoms[i], 0, cute.make_layout(1), cute.group_modes(shared[i], 0, 3), cute.group_modes(part, 0, 3)
            )
            target.append(cute.filter_zeros(t_smem))
            source.append(cute.filter_zeros(t_gmem))
        stage, parity = Int32(0), Int32(1)
        group, acquired = Int32(0), Int32(-1)
        tile = cta
        while tile < num_tiles:
            group = find_group(table, group, tile)
            x, y = tile_coords(table, group, tile)
            k_tiles = Int32(table[group, K]) // TILE_K
            if group != acquired:
                for i in cutlass.range_constexpr(NUM_MAPS):
                    cpasync.fence_tma_desc_acquire(manager.get_tensormap_ptr(maps[None, i, group].iterator))
                acquired = group
            for k_tile in cutlass.range(k_tiles, unroll=1):
                cute.arch.mbarrier_wait(empty + stage, parity)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, STAGE_BYTES)
                for i in cutlass.range_constexpr(NUM_MAPS):
                    xy = x if i % 2 == 0 else y
                    cute.copy(
                        atoms[i], source[i][None, xy, k_tile, 0], target[i][None, stage], tma_bar_ptr=full + stage,
                        tma_desc_ptr=manager.get_tensormap_ptr(
                            maps[None, i, group].iterator, cute.AddressSpace.generic
                        ),
                    )  # fmt: skip
                stage += 1
                if stage == STAGES:
                    stage = Int32(0)
                    parity ^= 1
            tile += ctas

    if warp == MMA_WARP:
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        one_stage = (None, None, None, 0)
        sfa_tmem = blockscaled_utils.make_tmem_layout_sfa(
            tiled_mma, TILER_MNK, SF_VEC, cute.slice_(sfa_layout, one_stage)
        )
        sfb_tmem = blockscaled_utils.make_tmem_layout_sfb(
            tiled_mma, TILER_MNK, SF_VEC, cute.slice_(sfb_layout, one_stage)
        )
        sfa_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(accumulators)
        tCtSFA = cute.make_tensor(cute.recast_ptr(sfa_ptr, dtype=SF_DTYPE), sfa_tmem)
        sfb_ptr = sfa_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)
        tCtSFB = cute.make_tensor(cute.recast_ptr(sfb_ptr, dtype=SF_DTYPE), sfb_tmem)
        s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), SF_DTYPE)
        tCtSFA_compact, tCtSFB_compact = cute.filter_zeros(tCtSFA), cute.filter_zeros(tCtSFB)
        s2t_sfa = tcgen05.make_s2t_copy(s2t_atom, tCtSFA_compact)
        s2t_sfb = tcgen05.make_s2t_copy(s2t_atom, tCtSFB_compact)
        thr_sfa, thr_sfb = s2t_sfa.get_slice(0), s2t_sfb.get_slice(0)
        tSsSFA = tcgen05.get_s2t_smem_desc_tensor(s2t_sfa, thr_sfa.partition_S(cute.filter_zeros(sSFA)))
        tSsSFB = tcgen05.get_s2t_smem_desc_tensor(s2t_sfb, thr_sfb.partition_S(cute.filter_zeros(sSFB)))
        tStSFA, tStSFB = thr_sfa.partition_D(tCtSFA_compact), thr_sfb.partition_D(tCtSFB_compact)

        stage, parity = Int32(0), Int32(0)
        acc, acc_parity = Int32(0), Int32(1)
        group = Int32(0)
        tile = cta
        while tile < num_tiles:
            group = find_group(table, group, tile)
            k_tiles = Int32(table[group, K]) // TILE_K
            cute.arch.mbarrier_wait(acc_empty + acc, acc_parity)
            fence_after_sync()
            tCtAcc = accumulators[None, None, None, acc]
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(k_tiles, unroll=1):
                cute.arch.mbarrier_wait(full + stage, parity)
                fence_after_sync()
                cute.copy(s2t_sfa, tSsSFA[None, None, None, None, stage], tStSFA)
                cute.copy(s2t_sfb, tSsSFB[None, None, None, None, stage], tStSFB)
                for k_block in cutlass.range_constexpr(TILE_K // MMA_K):
                    tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, None, k_block].iterator)
                    tiled_mma.set(tcgen05.Field.SFB, tCtSFB[None, None, k_block].iterator)
                    block = (None, None, k_block, stage)
                    cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(empty + stage)
                stage += 1
                if stage == STAGES:
                    stage = Int32(0)
                    parity ^= 1
            with cute.arch.elect_one():
                tcgen05.commit(acc_full + acc)
            acc += 1
            if acc == ACC_STAGES:
                acc = Int32(0)
                acc_parity ^= 1
            tile += ctas

    if warp < EPILOGUE_WARPS:
        t2r_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(TILE_N), tcgen05.Pack.NONE), Float32)
        t2r = tcgen05.make_tmem_copy(t2r_atom, accumulators[None, None, None, 0])
        thr_t2r = t2r.get_slice(thread)
        acc, acc_parity = Int32(0), Int32(0)
        group = Int32(0)
        tile = cta
        while tile < num_tiles:
            group = find_group(table, group, tile)
            x, y = tile_coords(table, group, tile)
            m, n = Int32(table[group, M]), Int32(table[group, N])
            c_ptr = cute.make_ptr(C_DTYPE, table[group, C], cute.AddressSpace.gmem, assumed_align=32)
            mC = cute.make_tensor(c_ptr, cute.make_layout((m, n), stride=(cute.assume(Int64(n), divby=TILE_N), 1)))
            gC = cute.local_tile(mC, (TILE_M, TILE_N), (x, y))
            tDgC = thr_t2r.partition_D(thr_mma.partition_C(gC))
            tDrAcc = cute.make_rmem_tensor(tDgC.shape, Float32)
            tDrC = cute.make_rmem_tensor(tDgC.shape, C_DTYPE)
            cute.arch.mbarrier_wait(acc_full + acc, acc_parity)
            fence_after_sync()
            cute.copy(t2r, thr_t2r.partition_S(accumulators[None, None, None, acc]), tDrAcc)
            cute.arch.fence_view_async_tmem_load()
            fence_before_sync()
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(acc_empty + acc)
            tDrC.store(tDrAcc.load().to(C_DTYPE))
            if x * TILE_M + thread < m:
                cute.autovec_copy(tDrC, tDgC)
            acc += 1
            if acc == ACC_STAGES:
                acc = Int32(0)
                acc_parity ^= 1
            tile += ctas

    cute.arch.sync_threads()
    if warp == MMA_WARP:
        cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS)


@cute.jit
def launch(table_ptr: cute.Pointer, maps_ptr: cute.Pointer, num_groups: Int32, num_tiles: Int32, ctas: Int32):
    """Encode the templates of the tensor maps, write those of every group, and compute."""
    table = cute.make_tensor(table_ptr, cute.make_layout((num_groups + 1, COLUMNS), stride=(COLUMNS, 1)))
    maps = cute.make_tensor(maps_ptr, cute.make_layout((MAP_BYTES // 8, NUM_MAPS, num_groups)))
    mma_op = tcgen05.MmaMXF4NVF4Op(SF_DTYPE, (TILE_M, TILE_N, MMA_K), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
    tiled_mma = cute.make_tiled_mma(mma_op)
    a_layout = sm100_utils.make_smem_layout_a(tiled_mma, TILER_MNK, AB_DTYPE, STAGES)
    b_layout = sm100_utils.make_smem_layout_b(tiled_mma, TILER_MNK, AB_DTYPE, STAGES)
    sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, TILER_MNK, SF_VEC, STAGES)
    sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, TILER_MNK, SF_VEC, STAGES)
    extent, address = Int32(TILE_K), table_ptr.toint()
    operands = make_operands(address, address, address, address, extent, extent, extent)
    op = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    atoms, coords = [], []
    for i, layout in enumerate((a_layout, b_layout, sfa_layout, sfb_layout)):
        make = cute.nvgpu.make_tiled_tma_atom_B if i % 2 else cute.nvgpu.make_tiled_tma_atom_A
        internal_type = cutlass.Int16 if i >= 2 else None
        one_stage = cute.slice_(layout, (None, None, None, 0))
        atom, coord = make(op, operands[i], one_stage, TILER_MNK, tiled_mma, internal_type=internal_type)
        atoms.append(atom)
        coords.append(coord)
    maps_kernel(*atoms, table, maps).launch(grid=(num_groups, 1, 1), block=(32 * NUM_MAPS, 1, 1))
    gemm_kernel(
        tiled_mma, tuple(atoms), tuple(coords), a_layout, b_layout, sfa_layout, sfb_layout, table, maps, num_tiles
    ).launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1))


def device_pointer(address, align):
    """A pointer to int64 in global memory, as a run-time argument."""
    return cute.runtime.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=align)


@functools.cache
def compiled():
    """The one compiled launcher."""
    return cute.compile(launch, device_pointer(0, 16), device_pointer(0, MAP_BYTES), Int32(1), Int32(1), Int32(1))


def compile_kernel(problem_sizes):
    """Compile, once for all problems."""
    return compiled()


def most_ctas():
    """CTAs that run at a time: one for each SM."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C in place and return the list of them."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    *first, num_tiles = first_tiles(problem_sizes)
    outputs = [c for _, _, c in abc_tensors]
    if num_tiles == 0:
        return outputs
    rows = [
        (p, m, n, k, a.data_ptr(), b.data_ptr(), sfa.data_ptr(), sfb.data_ptr(), c.data_ptr())
        for p, (m, n, k, _), (a, b, c), (sfa, sfb) in zip(first, problem_sizes, abc_tensors, sf_tensors, strict=True)
    ]
    table = torch.tensor([*rows, (num_tiles,) + (0,) * (COLUMNS - 1)], dtype=torch.int64, device="cuda")
    maps = torch.empty(len(rows) * NUM_MAPS * MAP_BYTES, dtype=torch.uint8, device="cuda")
    compiled()(
        device_pointer(table.data_ptr(), 16), device_pointer(maps.data_ptr(), MAP_BYTES),
        len(rows), num_tiles, min(num_tiles, most_ctas()),
    )  # fmt: skip
    return outputs
