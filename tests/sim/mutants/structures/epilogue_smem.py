"""NVFP4 grouped GEMM for sm_100a whose epilogue goes through shared memory to a TMA store.

One launch a group, one CTA a tile. The four epilogue warps take the accumulator in subtiles of 128x32: TMEM, registers,
one of two buffers in shared memory, and from there a TMA store by warp 0, which leaves out rows beyond m. A buffer is
filled again only when the store before the last has read it. Warp 4 issues MMAs, warp 5 loads.

Preconditions: l == 1, n % 128 == 0, k % 256 == 0; m >= 0 is free.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass import Float32, Int32, Int64, utils
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from task import input_t, output_t

try:
    from cutlass.memory import SmemAllocator
except ImportError:
    from cutlass.utils import SmemAllocator

AB_DTYPE, SF_DTYPE, C_DTYPE = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16
SF_VEC = 16
TILE_M, TILE_N, TILE_K, MMA_K = 128, 128, 128, 64
TILER_MNK = (TILE_M, TILE_N, TILE_K)
STAGES = 3
EPI_TILE = (TILE_M, 32)
C_STAGES = 2
STAGE_BYTES = (TILE_M + TILE_N) * (TILE_K // 2 + TILE_K // SF_VEC)
TMEM_COLUMNS = 256
EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
THREADS = 32 * (EPILOGUE_WARPS + 2)
EPILOGUE_BARRIER = 1


def fence_after_sync():
    """Order the tcgen05 operations that follow behind the synchronisation just passed."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def fence_before_sync():
    """Order this thread's tcgen05 operations before the synchronisation that follows."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


@cute.kernel
def gemm_kernel(
    tiled_mma: cute.TiledMma,
    atoms: tuple[cute.CopyAtom, ...],
    coords: tuple[cute.Tensor, ...],
    c_atom: cute.CopyAtom,
    mC: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    sfa_layout: cute.Layout,
    sfb_layout: cute.Layout,
    c_layout: cute.ComposedLayout,
    k_tiles: Int32,
):
    """Compute one tile of 128x128."""
    thread, _, _ = cute.arch.thread_idx()
    x, y, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

    smem = SmemAllocator()
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    acc_full = smem.allocate_array(Int64, 1)
    tmem_address = smem.allocate_array(Int32, 1)
    sC = smem.allocate_tensor(C_DTYPE, c_layout.outer, byte_alignment=1024, swizzle=c_layout.inner)
    sA = smem.allocate_tensor(AB_DTYPE, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(AB_DTYPE, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    sSFA = smem.allocate_tensor(SF_DTYPE, sfa_layout, byte_alignment=128)
    sSFB = smem.allocate_tensor(SF_DTYPE, sfb_layout, byte_alignment=128)

    if warp == MMA_WARP:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, 1)
            cute.arch.mbarrier_init(acc_full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address)
        cute.arch.relinquish_tmem_alloc_permit()
        fence_before_sync()
    cute.arch.sync_threads()
    fence_after_sync()

    tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
    thr_mma = tiled_mma.get_slice(0)
    acc_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((TILE_M, TILE_N))).layout
    tCtAcc = cute.make_tensor(tmem_ptr, acc_layout)

    if warp == TMA_WARP:

        def partition(i, smem_tensor):
            rows = TILE_M if i % 2 == 0 else TILE_N
            tiles = cute.local_tile(coords[i], (rows, TILE_K), (None, None, None))
            part = thr_mma.partition_A(tiles) if i % 2 == 0 else thr_mma.partition_B(tiles)
            alone = cute.make_layout(1)
            t_smem, t_gmem = cpasync.tma_partition(
                atoms[i], 0, alone, cute.group_modes(smem_tensor, 0, 3), cute.group_modes(part, 0, 3)
            )
            return cute.filter_zeros(t_smem), cute.filter_zeros(t_gmem)

        tAsA, tAgA = partition(0, sA)
        tBsB, tBgB = partition(1, sB)
        tAsSFA, tAgSFA = partition(2, sSFA)
        tBsSFB, tBgSFB = partition(3, sSFB)
        stage, parity = Int32(0), Int32(1)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, parity)
            bar = full + stage
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(bar, STAGE_BYTES)
            cute.copy(atoms[0], tAgA[None, x, k_tile, 0], tAsA[None, stage], tma_bar_ptr=bar)
            cute.copy(atoms[1], tBgB[None, y, k_tile, 0], tBsB[None, stage], tma_bar_ptr=bar)
            cute.copy(atoms[2], tAgSFA[None, x, k_tile, 0], tAsSFA[None, stage], tma_bar_ptr=bar)
            cute.copy(atoms[3], tBgSFB[None, y, k_tile, 0], tBsSFB[None, stage], tma_bar_ptr=bar)
            stage += 1
            if stage == STAGES:
                stage = Int32(0)
                parity ^= 1

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
        sfa_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc)
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

        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
        stage, parity = Int32(0), Int32(0)
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
            tcgen05.commit(acc_full)

    if warp < EPILOGUE_WARPS:
        # (EPI_M, EPI_N, 1, subtiles), in TMEM and in global memory
        acc_tiles = cute.flat_divide(tCtAcc[((None, None), 0, 0)], EPI_TILE)
        gC = cute.flat_divide(cute.local_tile(mC, (TILE_M, TILE_N), (x, y)), EPI_TILE)
        t2r_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(EPI_TILE[1]), tcgen05.Pack.NONE), Float32)
        t2r = tcgen05.make_tmem_copy(t2r_atom, acc_tiles[None, None, 0, 0])
        thr_t2r = t2r.get_slice(thread)
        tDtAcc = thr_t2r.partition_S(acc_tiles)
        tDrAcc = cute.make_rmem_tensor(thr_t2r.partition_D(gC)[None, None, None, 0, 0].shape, Float32)
        tDrC = cute.make_rmem_tensor(tDrAcc.shape, C_DTYPE)
        r2s_atom = sm100_utils.get_smem_store_op(utils.LayoutEnum.ROW_MAJOR, C_DTYPE, Float32, t2r)
        r2s = cute.make_tiled_copy_D(r2s_atom, t2r)
        tRsC = r2s.get_slice(thread).partition_D(sC)
        tRrC = r2s.retile(tDrC)
        bSsC, bSgC = cpasync.tma_partition(
            c_atom, 0, cute.make_layout(1), cute.group_modes(sC, 0, 2), cute.group_modes(gC, 0, 2)
        )
        cute.arch.mbarrier_wait(acc_full, 0)
        fence_after_sync()
        for subtile in cutlass.range(TILE_N // EPI_TILE[1], unroll=1):
            buffer = subtile % C_STAGES
            cute.copy(t2r, tDtAcc[None, None, None, 0, subtile], tDrAcc)
            cute.arch.fence_view_async_tmem_load()
            tDrC.store(tDrAcc.load().to(C_DTYPE))
            cute.copy(r2s, tRrC, tRsC[None, None, None, buffer])
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=EPILOGUE_BARRIER, number_of_threads=32 * EPILOGUE_WARPS)
            if warp == 0:
                with cute.arch.elect_one():
                    cute.copy(c_atom, bSsC[None, buffer], bSgC[None, 0, subtile])
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(C_STAGES - 1, read=True)
            cute.arch.barrier(barrier_id=EPILOGUE_BARRIER, number_of_threads=32 * EPILOGUE_WARPS)
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        fence_before_sync()

    cute.arch.sync_threads()
    if warp == MMA_WARP:
        fence_after_sync()
        cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS)


@cute.jit
def launch(
    a_ptr: cute.Pointer, b_ptr: cute.Pointer, sfa_ptr: cute.Pointer, sfb_ptr: cute.Pointer, c_ptr: cute.Pointer,
    m: Int32, n: Int32, k: Int32,
):  # fmt: skip
    """Launch one CTA for each tile of a group."""
    k = cute.assume(k, divby=TILE_K)
    a = cute.make_tensor(a_ptr, cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
    b = cute.make_tensor(b_ptr, cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
    sfa = cute.make_tensor(sfa_ptr, blockscaled_utils.tile_atom_to_shape_SF(a.shape, SF_VEC))
    sfb = cute.make_tensor(sfb_ptr, blockscaled_utils.tile_atom_to_shape_SF(b.shape, SF_VEC))
    c = cute.make_tensor(c_ptr, cute.make_layout((m, n), stride=(cute.assume(Int64(n), divby=TILE_N), 1)))
    mma_op = tcgen05.MmaMXF4NVF4Op(SF_DTYPE, (TILE_M, TILE_N, MMA_K), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
    tiled_mma = cute.make_tiled_mma(mma_op)
    a_layout = sm100_utils.make_smem_layout_a(tiled_mma, TILER_MNK, AB_DTYPE, STAGES)
    b_layout = sm100_utils.make_smem_layout_b(tiled_mma, TILER_MNK, AB_DTYPE, STAGES)
    sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, TILER_MNK, SF_VEC, STAGES)
    sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, TILER_MNK, SF_VEC, STAGES)
    tma_op = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    atoms, coords = [], []
    operands = ((a, a_layout), (b, b_layout), (sfa, sfa_layout), (sfb, sfb_layout))
    for i, (operand, layout) in enumerate(operands):
        make = cute.nvgpu.make_tiled_tma_atom_B if i % 2 else cute.nvgpu.make_tiled_tma_atom_A
        atom, coord = make(
            tma_op, operand, cute.slice_(layout, (None, None, None, 0)), TILER_MNK, tiled_mma,
            internal_type=cutlass.Int16 if i >= 2 else None,
        )  # fmt: skip
        atoms.append(atom)
        coords.append(coord)
    c_layout = sm100_utils.make_smem_layout_epi(C_DTYPE, utils.LayoutEnum.ROW_MAJOR, EPI_TILE, C_STAGES)
    c_atom, mC = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), c, cute.select(c_layout, mode=[0, 1]), EPI_TILE
    )
    gemm_kernel(
        tiled_mma, tuple(atoms), tuple(coords), c_atom, mC, a_layout, b_layout, sfa_layout, sfb_layout, c_layout,
        k // TILE_K,
    ).launch(grid=(cute.ceil_div(m, TILE_M), n // TILE_N, 1), block=(THREADS, 1, 1))  # fmt: skip


def pointer(dtype, address, align=16):
    """A pointer to global memory, as a run-time argument."""
    return cute.runtime.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)


def pointers(a, b, sfa, sfb, c):
    """The arguments that are pointers."""
    fp4 = [pointer(AB_DTYPE, address) for address in (a, b)]
    scales = [pointer(SF_DTYPE, address) for address in (sfa, sfb)]
    return (*fp4, *scales, pointer(C_DTYPE, c, 32))


@functools.cache
def compiled():
    """The one compiled launcher."""
    return cute.compile(launch, *pointers(0, 0, 0, 0, 0), Int32(1), Int32(1), Int32(1))


def compile_kernel(problem_sizes):
    """Compile, once for all problems."""
    return compiled()


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C in place, one launch a group, and return the list of them."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    for (m, n, k, _), (a, b, c), (sfa, sfb) in zip(problem_sizes, abc_tensors, sf_tensors, strict=True):
        if m > 0:
            addresses = [tensor.data_ptr() for tensor in (a, b, sfa, sfb, c)]
            compiled()(*pointers(*addresses), m, n, k)
    return [c for _, _, c in abc_tensors]
