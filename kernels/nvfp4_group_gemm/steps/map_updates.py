"""NVFP4 block-scaled grouped GEMM for NVIDIA B200 (sm_100a), in CuTe DSL.

For every group g:  C_g = (A_g * SFA_g) @ (B_g * SFB_g)^T, with A (m, k) and B (n, k) in E2M1, K-major, one E4M3 scale
per 16 elements of K, products summed in fp32 and stored once, rounded to nearest even, as fp16 C (m, n), N-major.
The entry points, `custom_kernel(data)` and `compile_kernel(problem_sizes)`, follow GPU MODE's `nvfp4_group_gemm`.

Status: compiled with nvidia-cutlass-dsl 4.4.0 and 4.8.1 and checked from its PTX. It has **not been run on a B200**, so
the numbers behind its choices (stages, CTAs per SM) are arithmetic, not measurements.

CTA map
    One launch, one CTA per 128x128 output tile, over the tiles of all groups. With Mg = ceil(m_g / 128),
    Ng = ceil(n_g / 128) and P(g) = sum of Mi * Ni over i < g (computed on the host, `first_tiles`), CTA b finds by
    binary search the last group with P(g) <= b, and works on tile (x, y) of it:

        b = P(g) + y * Mg + x,    0 <= x < Mg,  0 <= y < Ng

    A group without rows has no tiles: its P equals its successor's, so the search steps over it. x varies fastest:
    CTAs that run together share their tile of B, the weights. The grid is P(number of groups).

Tile and pipeline
    128x128x256, `tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale` of 128x128x64, four per k-tile.
    A stage is one k-tile: 16 KiB of A, 16 KiB of B, 2 KiB of SFA, 2 KiB of SFB, all by TMA; 36,864 bytes, also those
    of rows beyond m, which TMA fills with zeros. Three stages and two CTAs per SM: the bytes in flight of six stages
    in one CTA, but one CTA's prologue and epilogue run under the other's main loop, which a grid of independent tiles
    needs. `CTAS_PER_SM = 1` gives the six stages.

Warps (192 threads)
    0-3  at the start one tensormap each (A, B, SFA, SFB); then the epilogue, warp w on accumulator rows 32w .. 32w+31
    4    mbarriers and TMEM; then scale factors to TMEM (`tcgen05.cp`) and MMA
    5    TMA

Barriers
    full_mbar[s]   1 arrival (the TMA warp's expect_tx) + 36,864 bytes; waited on by MMA, first with parity 0
    empty_mbar[s]  1 arrival (tcgen05.commit of the MMAs that read the stage); waited on by TMA, first with parity 1,
                   which a fresh mbarrier passes
    acc_mbar       1 arrival (tcgen05.commit after the last k-tile); waited on once by the epilogue, parity 0
    CTA-wide       bar.sync 0 twice: after the prologue, and before TMEM is freed

Tensormaps
    The host encodes one template per operand into the kernel's parameters. Each CTA copies it to shared memory
    (128-byte aligned), replaces address, extents and strides by its group's, and publishes it with
    `tensormap.cp_fenceproxy ... release.gpu` to 128 bytes of global memory of its own; the TMA warp acquires the four
    with `fence.proxy.tensormap ... acquire.gpu` behind the CTA barrier. No CTA reads another's.

TMEM: 256 columns, of which 160 are used; two CTAs fit the SM's 512
    0..127    accumulator: lane = row of the tile, column = its n, fp32
    128..143  SFA: 4 columns per MMA, one for 32 rows; byte j of a column = block j of the MMA's K
    144..159  SFB: likewise
    `tcgen05.cp` and `tcgen05.mma` of one thread execute in order, so one copy of the scale factors is enough.

Compile time: tile, stages, data types, layouts in shared memory and TMEM, warp roles.
Run time: number of groups, m, n, k and addresses of each. One compilation serves every problem.

Preconditions (`check_problem` raises ValueError): l == 1, n % 128 == 0, k % 256 == 0 and k > 0; m >= 0 is free.
All tensors dense and 16-byte aligned (C: 32-byte), scale factors in the 128x4 block layout, padded to 128 rows; what
the padding holds never reaches C. Rows from m on are neither computed from memory outside A nor stored.
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
except ImportError:  # before these names moved, 4.4 among them
    from cutlass.utils import SmemAllocator, TensorMapManager, TensorMapUpdateMode

AB_DTYPE = cutlass.Float4E2M1FN
SF_DTYPE = cutlass.Float8E4M3FN
C_DTYPE = cutlass.Float16

SF_VEC = 16  # elements of K that share one scale
TILE_M, TILE_N, TILE_K = 128, 128, 256
MMA_K = 64
TILER_MNK = (TILE_M, TILE_N, TILE_K)

# Shared memory: a B200 SM has 228 KiB, of which each resident CTA costs 1 KiB of the system's.
CTAS_PER_SM = 2
AB_STAGE_BYTES = (TILE_M + TILE_N) * TILE_K // 2
SF_STAGE_BYTES = (TILE_M + TILE_N) * TILE_K // SF_VEC
STAGE_BYTES = AB_STAGE_BYTES + SF_STAGE_BYTES
CONTROL_BYTES = 1024  # tensormaps, barriers and the TMEM address, before the first 1024-byte aligned stage
NUM_STAGES = (228 * 1024 // CTAS_PER_SM - 1024 - CONTROL_BYTES) // STAGE_BYTES

# TMEM columns: the fp32 accumulator has one per n, scale factors one per 32 rows and MMA; allocated in powers of two.
SF_COLUMNS = (TILE_M + TILE_N) // 32 * (TILE_K // MMA_K)
TMEM_COLUMNS = max(32, 1 << (TILE_N + SF_COLUMNS - 1).bit_length())

TMA_WARP, MMA_WARP, EPILOGUE_WARPS = 5, 4, 4
NUM_THREADS = 32 * (EPILOGUE_WARPS + 2)

NUM_TENSORMAPS = 4  # A, B, SFA, SFB
TENSORMAP_BYTES = 128

# One row of int64 per group: the group's first tile P(g), its extents, the addresses of its tensors.
FIRST_TILE, M, N, K, A, B, SFA, SFB, C = range(9)
TABLE_COLUMNS = 9


def ceil_div(a, b):
    """Quotient of a >= 0 and b > 0, rounded up."""
    return (a + b - 1) // b


def first_tiles(problem_sizes):
    """P(0) .. P(G): the number of tiles before each group, and last the number of all tiles, the grid."""
    first = [0]
    for m, n, _, _ in problem_sizes:
        first.append(first[-1] + ceil_div(m, TILE_M) * ceil_div(n, TILE_N))
    return first


def check_problem(problem_sizes):
    """Raise ValueError for a group that this kernel would read or write out of bounds, or leave unwritten."""
    for group, (m, n, k, batch) in enumerate(problem_sizes):
        if m < 0 or n < 0 or n % TILE_N or k <= 0 or k % TILE_K or batch != 1:
            raise ValueError(
                f"group {group} is (m, n, k, l) = ({m}, {n}, {k}, {batch}); this kernel needs m >= 0, "
                f"n a multiple of {TILE_N}, k a positive multiple of {TILE_K} and l = 1"
            )


@cute.jit
def find_tile(table: cute.Tensor, num_groups: Int32, tile: Int32):
    """The CTA map: group and tile coordinates (x, y) of CTA `tile`, 0 <= tile < P(num_groups)."""
    # Invariant: P(low) <= tile < P(high).
    low = Int32(0)
    high = num_groups
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle, FIRST_TILE] <= tile:
            low = middle
        else:
            high = middle
    tile_in_group = tile - Int32(table[low, FIRST_TILE])
    tiles_m = ceil_div(Int32(table[low, M]), TILE_M)
    y = tile_in_group // tiles_m
    return low, tile_in_group - y * tiles_m, y


def make_operands(a_address, b_address, sfa_address, sfb_address, m, n, k):
    """Global tensors A (m, k, 1), B (n, k, 1), SFA and SFB of one group; their layouts are all that TMA needs."""
    k = cute.assume(k, divby=TILE_K)

    def pointer(dtype, address):
        return cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)

    a = cute.make_tensor(pointer(AB_DTYPE, a_address), cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
    b = cute.make_tensor(pointer(AB_DTYPE, b_address), cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
    sfa_layout = blockscaled_utils.tile_atom_to_shape_SF(a.shape, SF_VEC)
    sfb_layout = blockscaled_utils.tile_atom_to_shape_SF(b.shape, SF_VEC)
    sfa = cute.make_tensor(pointer(SF_DTYPE, sfa_address), sfa_layout)
    sfb = cute.make_tensor(pointer(SF_DTYPE, sfb_address), sfb_layout)
    return a, b, sfa, sfb


def fence_tcgen05_after_sync():
    """Order the tcgen05 operations that follow behind the synchronisation that this thread has just passed."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def fence_tcgen05_before_sync():
    """Order this thread's earlier tcgen05 operations before the synchronisation that follows."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


@cute.kernel
def group_gemm_kernel(
    tiled_mma: cute.TiledMma,
    tma_atom_a: cute.CopyAtom,
    mA_mkl: cute.Tensor,
    tma_atom_b: cute.CopyAtom,
    mB_nkl: cute.Tensor,
    tma_atom_sfa: cute.CopyAtom,
    mSFA_mkl: cute.Tensor,
    tma_atom_sfb: cute.CopyAtom,
    mSFB_nkl: cute.Tensor,
    a_smem_layout_staged: cute.ComposedLayout,
    b_smem_layout_staged: cute.ComposedLayout,
    sfa_smem_layout_staged: cute.Layout,
    sfb_smem_layout_staged: cute.Layout,
    table: cute.Tensor,
    tensormaps: cute.Tensor,
    num_groups: Int32,
):
    """Compute one 128x128 tile of one group (see the module's docstring)."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = thread % 32

    group, x, y = find_tile(table, num_groups, cta)
    m = Int32(table[group, M])
    n = Int32(table[group, N])
    k = Int32(table[group, K])
    k_tiles = k // TILE_K

    #
    # Shared memory
    #
    smem = SmemAllocator()
    sTensormaps = smem.allocate_tensor(
        Int64, cute.make_layout((TENSORMAP_BYTES // 8, NUM_TENSORMAPS)), byte_alignment=TENSORMAP_BYTES
    )
    full_mbar = smem.allocate_array(Int64, NUM_STAGES)
    empty_mbar = smem.allocate_array(Int64, NUM_STAGES)
    acc_mbar = smem.allocate_array(Int64, 1)
    tmem_address = smem.allocate_array(Int32, 1)
    sA = smem.allocate_tensor(
        AB_DTYPE, a_smem_layout_staged.outer, byte_alignment=1024, swizzle=a_smem_layout_staged.inner
    )
    sB = smem.allocate_tensor(
        AB_DTYPE, b_smem_layout_staged.outer, byte_alignment=1024, swizzle=b_smem_layout_staged.inner
    )
    sSFA = smem.allocate_tensor(SF_DTYPE, sfa_smem_layout_staged, byte_alignment=128)
    sSFB = smem.allocate_tensor(SF_DTYPE, sfb_smem_layout_staged, byte_alignment=128)

    #
    # Prologue: tensormaps (warps 0-3), barriers and TMEM (warp 4)
    #
    manager = TensorMapManager(TensorMapUpdateMode.SMEM, TENSORMAP_BYTES)
    tensormap = [manager.get_tensormap_ptr(tensormaps[None, i, cta].iterator) for i in range(NUM_TENSORMAPS)]
    descriptor = [
        manager.get_tensormap_ptr(tensormaps[None, i, cta].iterator, cute.AddressSpace.generic)
        for i in range(NUM_TENSORMAPS)
    ]
    atoms = (tma_atom_a, tma_atom_b, tma_atom_sfa, tma_atom_sfb)
    operands = make_operands(table[group, A], table[group, B], table[group, SFA], table[group, SFB], m, n, k)
    for i in cutlass.range_constexpr(NUM_TENSORMAPS):
        if warp == i:
            staged = sTensormaps[None, i].iterator
            # The template may cover only the first half of the 128 bytes (4.8); publish no stale shared memory.
            if lane < TENSORMAP_BYTES // 8:
                sTensormaps[lane, i] = Int64(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cpasync.copy_tensormap(atoms[i], staged)
            cute.arch.sync_warp()
            cpasync.update_tma_descriptor(atoms[i], operands[i], staged)
            cute.arch.sync_warp()
            cpasync.cp_fence_tma_desc_release(tensormap[i], staged)

    if warp == MMA_WARP:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(NUM_STAGES):
                cute.arch.mbarrier_init(full_mbar + stage, 1)
                cute.arch.mbarrier_init(empty_mbar + stage, 1)
            cute.arch.mbarrier_init(acc_mbar, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address)
        # Let the SM's other CTA allocate.
        cute.arch.relinquish_tmem_alloc_permit()
        fence_tcgen05_before_sync()
    cute.arch.sync_threads()
    fence_tcgen05_after_sync()

    tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
    thr_mma = tiled_mma.get_slice(0)
    # ((MMA_M, MMA_N), 1, 1)
    acc_shape = tiled_mma.partition_shape_C((TILE_M, TILE_N))
    tCtAcc = cute.make_tensor(tmem_ptr, tiled_mma.make_fragment_C(acc_shape).layout)

    #
    # TMA warp
    #
    if warp == TMA_WARP:
        for i in cutlass.range_constexpr(NUM_TENSORMAPS):
            cpasync.fence_tma_desc_acquire(tensormap[i])

        # (TILE_M or TILE_N, TILE_K, REST_M or REST_N, REST_K, 1)
        gA_mkl = cute.local_tile(mA_mkl, (TILE_M, TILE_K), (None, None, None))
        gB_nkl = cute.local_tile(mB_nkl, (TILE_N, TILE_K), (None, None, None))
        gSFA_mkl = cute.local_tile(mSFA_mkl, (TILE_M, TILE_K), (None, None, None))
        gSFB_nkl = cute.local_tile(mSFB_nkl, (TILE_N, TILE_K), (None, None, None))
        # (MMA, MMA_M or MMA_N, MMA_K, REST_M or REST_N, REST_K, 1)
        tCgA = thr_mma.partition_A(gA_mkl)
        tCgB = thr_mma.partition_B(gB_nkl)
        tCgSFA = thr_mma.partition_A(gSFA_mkl)
        tCgSFB = thr_mma.partition_B(gSFB_nkl)
        # ((TMA, REST), STAGE) and ((TMA, REST), REST_M or REST_N, REST_K, 1)
        no_multicast = cute.make_layout(1)
        tAsA, tAgA = cpasync.tma_partition(
            tma_atom_a, 0, no_multicast, cute.group_modes(sA, 0, 3), cute.group_modes(tCgA, 0, 3)
        )
        tBsB, tBgB = cpasync.tma_partition(
            tma_atom_b, 0, no_multicast, cute.group_modes(sB, 0, 3), cute.group_modes(tCgB, 0, 3)
        )
        tAsSFA, tAgSFA = cpasync.tma_partition(
            tma_atom_sfa, 0, no_multicast, cute.group_modes(sSFA, 0, 3), cute.group_modes(tCgSFA, 0, 3)
        )
        tBsSFB, tBgSFB = cpasync.tma_partition(
            tma_atom_sfb, 0, no_multicast, cute.group_modes(sSFB, 0, 3), cute.group_modes(tCgSFB, 0, 3)
        )
        # Sixteen elements of K share a scale: leave each scale once.
        tAsSFA = cute.filter_zeros(tAsSFA)
        tAgSFA = cute.filter_zeros(tAgSFA)
        tBsSFB = cute.filter_zeros(tBsSFB)
        tBgSFB = cute.filter_zeros(tBgSFB)
        # This CTA's tiles: ((TMA, REST), REST_K)
        tAgA = tAgA[None, x, None, 0]
        tBgB = tBgB[None, y, None, 0]
        tAgSFA = tAgSFA[None, x, None, 0]
        tBgSFB = tBgSFB[None, y, None, 0]

        stage = Int32(0)
        parity = Int32(1)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(empty_mbar + stage, parity)
            mbar = full_mbar + stage
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES)
            cute.copy(tma_atom_a, tAgA[None, k_tile], tAsA[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=descriptor[0])
            cute.copy(tma_atom_b, tBgB[None, k_tile], tBsB[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=descriptor[1])
            cute.copy(
                tma_atom_sfa, tAgSFA[None, k_tile], tAsSFA[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=descriptor[2]
            )
            cute.copy(
                tma_atom_sfb, tBgSFB[None, k_tile], tBsSFB[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=descriptor[3]
            )
            stage += 1
            if stage == NUM_STAGES:
                stage = Int32(0)
                parity ^= 1

    #
    # MMA warp
    #
    if warp == MMA_WARP:
        # (MMA, MMA_M or MMA_N, MMA_K, STAGE)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        # (MMA, MMA_M or MMA_N, MMA_K), behind the accumulator
        tCtSFA_layout = blockscaled_utils.make_tmem_layout_sfa(
            tiled_mma, TILER_MNK, SF_VEC, cute.slice_(sfa_smem_layout_staged, (None, None, None, 0))
        )
        tCtSFB_layout = blockscaled_utils.make_tmem_layout_sfb(
            tiled_mma, TILER_MNK, SF_VEC, cute.slice_(sfb_smem_layout_staged, (None, None, None, 0))
        )
        sfa_tmem_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc)
        tCtSFA = cute.make_tensor(cute.recast_ptr(sfa_tmem_ptr, dtype=SF_DTYPE), tCtSFA_layout)
        sfb_tmem_ptr = sfa_tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)
        tCtSFB = cute.make_tensor(cute.recast_ptr(sfb_tmem_ptr, dtype=SF_DTYPE), tCtSFB_layout)

        # Scale factors, shared memory to TMEM, each of the 32 rows to all four quadrants of the lanes
        s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), SF_DTYPE)
        tCtSFA_compact = cute.filter_zeros(tCtSFA)
        tCtSFB_compact = cute.filter_zeros(tCtSFB)
        s2t_sfa = tcgen05.make_s2t_copy(s2t_atom, tCtSFA_compact)
        s2t_sfb = tcgen05.make_s2t_copy(s2t_atom, tCtSFB_compact)
        thr_s2t_sfa = s2t_sfa.get_slice(0)
        thr_s2t_sfb = s2t_sfb.get_slice(0)
        tSsSFA = tcgen05.get_s2t_smem_desc_tensor(s2t_sfa, thr_s2t_sfa.partition_S(cute.filter_zeros(sSFA)))
        tSsSFB = tcgen05.get_s2t_smem_desc_tensor(s2t_sfb, thr_s2t_sfb.partition_S(cute.filter_zeros(sSFB)))
        tStSFA = thr_s2t_sfa.partition_D(tCtSFA_compact)
        tStSFB = thr_s2t_sfb.partition_D(tCtSFB_compact)

        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
        stage = Int32(0)
        parity = Int32(0)
        for _ in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(full_mbar + stage, parity)
            fence_tcgen05_after_sync()
            cute.copy(s2t_sfa, tSsSFA[None, None, None, None, stage], tStSFA)
            cute.copy(s2t_sfb, tSsSFB[None, None, None, None, stage], tStSFB)
            for k_block in cutlass.range_constexpr(TILE_K // MMA_K):
                tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, None, k_block].iterator)
                tiled_mma.set(tcgen05.Field.SFB, tCtSFB[None, None, k_block].iterator)
                cute.gemm(tiled_mma, tCtAcc, tCrA[None, None, k_block, stage], tCrB[None, None, k_block, stage], tCtAcc)
                tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(empty_mbar + stage)
            stage += 1
            if stage == NUM_STAGES:
                stage = Int32(0)
                parity ^= 1
        with cute.arch.elect_one():
            tcgen05.commit(acc_mbar)

    #
    # Epilogue warps: a thread has one row of the tile
    #
    if warp < EPILOGUE_WARPS:
        # 32 bytes: one store fills a whole sector of L2 (N is a multiple of 128, so every row starts like the first).
        c_ptr = cute.make_ptr(C_DTYPE, table[group, C], cute.AddressSpace.gmem, assumed_align=32)
        # 64-bit stride: m * n may exceed 2^31 elements.
        mC_mn = cute.make_tensor(c_ptr, cute.make_layout((m, n), stride=(cute.assume(Int64(n), divby=TILE_N), 1)))
        gC = cute.local_tile(mC_mn, (TILE_M, TILE_N), (x, y))
        tCgC = thr_mma.partition_C(gC)
        t2r_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(TILE_N), tcgen05.Pack.NONE), Float32)
        t2r = tcgen05.make_tmem_copy(t2r_atom, tCtAcc)
        thr_t2r = t2r.get_slice(thread)
        # ((T2R, REST), 1, 1)
        tDtAcc = thr_t2r.partition_S(tCtAcc)
        tDgC = thr_t2r.partition_D(tCgC)
        tDrAcc = cute.make_rmem_tensor(tDgC.shape, Float32)
        tDrC = cute.make_rmem_tensor(tDgC.shape, C_DTYPE)

        cute.arch.mbarrier_wait(acc_mbar, 0)
        fence_tcgen05_after_sync()
        cute.copy(t2r, tDtAcc, tDrAcc)
        cute.arch.fence_view_async_tmem_load()
        tDrC.store(tDrAcc.load().to(C_DTYPE))
        if x * TILE_M + thread < m:
            cute.autovec_copy(tDrC, tDgC)
        fence_tcgen05_before_sync()

    cute.arch.sync_threads()
    if warp == MMA_WARP:
        fence_tcgen05_after_sync()
        cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS)


@cute.jit
def launch(table_ptr: cute.Pointer, tensormaps_ptr: cute.Pointer, num_groups: Int32, num_tiles: Int32):
    """Encode the tensormap templates and launch one CTA per tile."""
    table = cute.make_tensor(table_ptr, cute.make_layout((num_groups, TABLE_COLUMNS), stride=(TABLE_COLUMNS, 1)))
    tensormaps = cute.make_tensor(tensormaps_ptr, cute.make_layout((TENSORMAP_BYTES // 8, NUM_TENSORMAPS, num_tiles)))

    mma_op = tcgen05.MmaMXF4NVF4Op(SF_DTYPE, (TILE_M, TILE_N, MMA_K), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
    tiled_mma = cute.make_tiled_mma(mma_op)
    # (MMA, MMA_M or MMA_N, MMA_K, STAGE)
    a_smem_layout_staged = sm100_utils.make_smem_layout_a(tiled_mma, TILER_MNK, AB_DTYPE, NUM_STAGES)
    b_smem_layout_staged = sm100_utils.make_smem_layout_b(tiled_mma, TILER_MNK, AB_DTYPE, NUM_STAGES)
    sfa_smem_layout_staged = blockscaled_utils.make_smem_layout_sfa(tiled_mma, TILER_MNK, SF_VEC, NUM_STAGES)
    sfb_smem_layout_staged = blockscaled_utils.make_smem_layout_sfb(tiled_mma, TILER_MNK, SF_VEC, NUM_STAGES)

    # Templates: box, swizzle and type are final; address, extents and strides are those of some small tensor, for the
    # CTAs replace them. The extents are a run-time value, so that no layout of the kernel depends on them.
    extent = Int32(TILE_K)
    address = table_ptr.toint()
    a, b, sfa, sfb = make_operands(address, address, address, address, extent, extent, extent)
    tma_op = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage = (None, None, None, 0)
    tma_atom_a, mA_mkl = cute.nvgpu.make_tiled_tma_atom_A(
        tma_op, a, cute.slice_(a_smem_layout_staged, stage), TILER_MNK, tiled_mma
    )
    tma_atom_b, mB_nkl = cute.nvgpu.make_tiled_tma_atom_B(
        tma_op, b, cute.slice_(b_smem_layout_staged, stage), TILER_MNK, tiled_mma
    )
    # As 16-bit elements a 512-byte block of scales is 256 long, the most that a box may be.
    tma_atom_sfa, mSFA_mkl = cute.nvgpu.make_tiled_tma_atom_A(
        tma_op,
        sfa,
        cute.slice_(sfa_smem_layout_staged, stage),
        TILER_MNK,
        tiled_mma,
        internal_type=cutlass.Int16,
    )
    tma_atom_sfb, mSFB_nkl = cute.nvgpu.make_tiled_tma_atom_B(
        tma_op,
        sfb,
        cute.slice_(sfb_smem_layout_staged, stage),
        TILER_MNK,
        tiled_mma,
        internal_type=cutlass.Int16,
    )

    group_gemm_kernel(
        tiled_mma,
        tma_atom_a,
        mA_mkl,
        tma_atom_b,
        mB_nkl,
        tma_atom_sfa,
        mSFA_mkl,
        tma_atom_sfb,
        mSFB_nkl,
        a_smem_layout_staged,
        b_smem_layout_staged,
        sfa_smem_layout_staged,
        sfb_smem_layout_staged,
        table,
        tensormaps,
        num_groups,
    ).launch(grid=(num_tiles, 1, 1), block=(NUM_THREADS, 1, 1))


def device_pointer(address, align):
    """A run-time argument: pointer to int64 in global memory."""
    return cute.runtime.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=align)


@functools.cache
def compiled():
    """The one compiled launcher; all its arguments are run-time values."""
    return cute.compile(launch, device_pointer(0, 16), device_pointer(0, TENSORMAP_BYTES), Int32(1), Int32(1))


@functools.lru_cache(maxsize=16)
def device_table(rows):
    """The group table on the device: a function of `rows` alone, so calls on the same tensors copy it once."""
    return torch.tensor(rows, dtype=torch.int64, device="cuda")


def compile_kernel(problem_sizes):
    """Compile, once for all problems; `problem_sizes` is only checked."""
    check_problem(problem_sizes)
    return compiled()


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C in place and return the list of them; `data` is as GPU MODE's task defines it."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    check_problem(problem_sizes)
    *first, num_tiles = first_tiles(problem_sizes)
    outputs = [c for _, _, c in abc_tensors]
    if num_tiles == 0:
        return outputs
    rows = tuple(
        (p, m, n, k, a.data_ptr(), b.data_ptr(), sfa.data_ptr(), sfb.data_ptr(), c.data_ptr())
        for p, (m, n, k, _), (a, b, c), (sfa, sfb) in zip(first, problem_sizes, abc_tensors, sf_tensors, strict=True)
    )
    table = device_table(rows)
    tensormaps = torch.empty(num_tiles * NUM_TENSORMAPS * TENSORMAP_BYTES, dtype=torch.uint8, device="cuda")
    compiled()(
        device_pointer(table.data_ptr(), 16),
        device_pointer(tensormaps.data_ptr(), TENSORMAP_BYTES),
        len(rows),
        num_tiles,
    )
    return outputs
