"""NVFP4 grouped GEMM for sm_100a with pairs of CTAs (`cta_group::2`), on the DSL's own pipelines.

One launch a group. A cluster of two CTAs computes a tile of 256x128: each CTA has 128 rows of A and of C, half the
rows of B, and the scale factors of all 128 rows of B. The first CTA of the pair issues the MMAs of both. Warp 0 loads,
warp 1 issues MMAs, and then all four warps store C.

Preconditions: l == 1, n % 128 == 0, k % 256 == 0; m >= 0 is free.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass import Float32, Int32, Int64, pipeline, utils
from cutlass.cute.nvgpu import cpasync, tcgen05
from task import input_t, output_t

AB_DTYPE, SF_DTYPE, C_DTYPE = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16
SF_VEC = 16
TILE_M, TILE_N, TILE_K, MMA_K = 256, 128, 256, 64
TILER_MNK = (TILE_M, TILE_N, TILE_K)
SFB_TILER_MNK = (TILE_M // 2, TILE_N, TILE_K)
CTA_M = TILE_M // 2
STAGES = 2
CLUSTER = (2, 1)
TMEM_COLUMNS = 256  # the accumulator's 128 and 32 of scale factors, in a power of two
LOAD_WARP, MMA_WARP = 0, 1
THREADS = 128
TMEM_BARRIER = 1


@cute.kernel
def gemm_kernel(
    tiled_mma: cute.TiledMma,
    sfb_mma: cute.TiledMma,
    atoms: tuple[cute.CopyAtom, ...],
    coords: tuple[cute.Tensor, ...],
    mC: cute.Tensor,
    cluster_layout: cute.Layout,
    sfb_cluster_layout: cute.Layout,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    sfa_layout: cute.Layout,
    sfb_layout: cute.Layout,
    m: Int32,
):
    """Compute one 256x128 tile with a pair of CTAs."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    block_x, block_y, _ = cute.arch.block_idx()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    in_cluster = cluster_layout.get_flat_coord(rank)
    sfb_in_cluster = sfb_cluster_layout.get_flat_coord(rank)
    peer = block_x % 2
    leads = peer == 0
    tile_x = block_x // 2

    @cute.struct
    class Storage:
        ab_barriers: cute.struct.MemRange[Int64, 2 * STAGES]
        acc_barriers: cute.struct.MemRange[Int64, 2]
        dealloc_barrier: cute.struct.MemRange[Int64, 1]
        tmem_address: cute.struct.MemRange[Int32, 1]

    smem = utils.SmemAllocator()
    storage = smem.allocate(Storage)
    sA = smem.allocate_tensor(AB_DTYPE, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(AB_DTYPE, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    sSFA = smem.allocate_tensor(SF_DTYPE, sfa_layout, byte_alignment=128)
    sSFB = smem.allocate_tensor(SF_DTYPE, sfb_layout, byte_alignment=128)

    one_stage = (None, None, None, 0)
    cta_bytes = (
        cute.size_in_bytes(AB_DTYPE, cute.slice_(a_layout, one_stage))
        + cute.size_in_bytes(AB_DTYPE, cute.slice_(b_layout, one_stage))
        + cute.size_in_bytes(SF_DTYPE, cute.slice_(sfa_layout, one_stage))
        + cute.size_in_bytes(SF_DTYPE, cute.slice_(sfb_layout, one_stage))
    )
    ab_producer, ab_consumer = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        tx_count=2 * cta_bytes,
        barrier_storage=storage.ab_barriers.data_ptr(),
        cta_layout_vmnk=cluster_layout,
    ).make_participants()
    acc_producer, acc_consumer = pipeline.PipelineUmmaAsync.create(
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * THREADS),
        barrier_storage=storage.acc_barriers.data_ptr(),
        cta_layout_vmnk=cluster_layout,
    ).make_participants()
    tmem = utils.TmemAllocator(
        storage.tmem_address.data_ptr(),
        barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=TMEM_BARRIER, num_threads=THREADS),
        is_two_cta=True,
        two_cta_tmem_dealloc_mbar_ptr=storage.dealloc_barrier.data_ptr(),
    )
    tmem.allocate(TMEM_COLUMNS)

    slice_mma = tiled_mma.get_slice(peer)
    slice_sfb = sfb_mma.get_slice(0)
    gA = cute.local_tile(coords[0], TILER_MNK, (tile_x, block_y, None, 0), proj=(1, None, 1))
    gB = cute.local_tile(coords[1], TILER_MNK, (tile_x, block_y, None, 0), proj=(None, 1, 1))
    gSFA = cute.local_tile(coords[2], TILER_MNK, (tile_x, block_y, None, 0), proj=(1, None, 1))
    gSFB = cute.local_tile(coords[3], SFB_TILER_MNK, (tile_x, block_y, None, 0), proj=(None, 1, 1))
    gC = cute.local_tile(mC, TILER_MNK, (tile_x, block_y, None, 0), proj=(1, 1, None))
    tCgC = slice_mma.partition_C(gC)
    k_tiles = cute.size(gA, mode=[2])

    def partition(atom, coord, ctas, shared, tiles):
        t_smem, t_gmem = cpasync.tma_partition(
            atom, coord, ctas, cute.group_modes(shared, 0, 3), cute.group_modes(tiles, 0, 3)
        )
        return cute.filter_zeros(t_smem), cute.filter_zeros(t_gmem)

    a_ctas = cute.make_layout(cute.size(cluster_layout, mode=[2]))
    b_ctas = cute.make_layout(cute.size(cluster_layout, mode=[1]))
    sfb_ctas = cute.make_layout(cute.size(sfb_cluster_layout, mode=[1]))
    tAsA, tAgA = partition(atoms[0], in_cluster[2], a_ctas, sA, slice_mma.partition_A(gA))
    tBsB, tBgB = partition(atoms[1], in_cluster[1], b_ctas, sB, slice_mma.partition_B(gB))
    tAsSFA, tAgSFA = partition(atoms[2], in_cluster[2], a_ctas, sSFA, slice_mma.partition_A(gSFA))
    tBsSFB, tBgSFB = partition(atoms[3], sfb_in_cluster[1], sfb_ctas, sSFB, slice_sfb.partition_B(gSFB))
    a_mask = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=2)
    b_mask = cpasync.create_tma_multicast_mask(cluster_layout, in_cluster, mcast_mode=1)
    sfb_mask = cpasync.create_tma_multicast_mask(sfb_cluster_layout, sfb_in_cluster, mcast_mode=1)

    tmem.wait_for_alloc()
    tmem_ptr = tmem.retrieve_ptr(Float32)
    acc_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(TILER_MNK[:2])).layout
    tCtAcc = cute.make_tensor(tmem_ptr, acc_layout)
    sfa_ptr = tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtAcc)
    sfa_tmem = blockscaled_utils.make_tmem_layout_sfa(tiled_mma, TILER_MNK, SF_VEC, cute.slice_(sfa_layout, one_stage))
    tCtSFA = cute.make_tensor(cute.recast_ptr(sfa_ptr, dtype=SF_DTYPE), sfa_tmem)
    sfb_ptr = sfa_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)
    sfb_tmem = blockscaled_utils.make_tmem_layout_sfb(tiled_mma, TILER_MNK, SF_VEC, cute.slice_(sfb_layout, one_stage))
    tCtSFB = cute.make_tensor(cute.recast_ptr(sfb_ptr, dtype=SF_DTYPE), sfb_tmem)

    if warp == LOAD_WARP:
        for k_tile in cutlass.range(k_tiles, unroll=1):
            slot = ab_producer.acquire_and_advance()
            bar = slot.barrier
            cute.copy(atoms[0], tAgA[None, k_tile], tAsA[None, slot.index], tma_bar_ptr=bar, mcast_mask=a_mask)
            cute.copy(atoms[1], tBgB[None, k_tile], tBsB[None, slot.index], tma_bar_ptr=bar, mcast_mask=b_mask)
            cute.copy(atoms[2], tAgSFA[None, k_tile], tAsSFA[None, slot.index], tma_bar_ptr=bar, mcast_mask=a_mask)
            cute.copy(atoms[3], tBgSFB[None, k_tile], tBsSFB[None, slot.index], tma_bar_ptr=bar, mcast_mask=sfb_mask)
        ab_producer.tail()

    if warp == MMA_WARP and leads:
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.TWO), SF_DTYPE)
        tCtSFA_compact, tCtSFB_compact = cute.filter_zeros(tCtSFA), cute.filter_zeros(tCtSFB)
        s2t_sfa = tcgen05.make_s2t_copy(s2t_atom, tCtSFA_compact)
        s2t_sfb = tcgen05.make_s2t_copy(s2t_atom, tCtSFB_compact)
        thr_sfa, thr_sfb = s2t_sfa.get_slice(0), s2t_sfb.get_slice(0)
        tSsSFA = tcgen05.get_s2t_smem_desc_tensor(s2t_sfa, thr_sfa.partition_S(cute.filter_zeros(sSFA)))
        tSsSFB = tcgen05.get_s2t_smem_desc_tensor(s2t_sfb, thr_sfb.partition_S(cute.filter_zeros(sSFB)))
        tStSFA, tStSFB = thr_sfa.partition_D(tCtSFA_compact), thr_sfb.partition_D(tCtSFB_compact)
        acc_slot = acc_producer.acquire_and_advance()
        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
        for _ in cutlass.range(k_tiles, unroll=1):
            slot = ab_consumer.wait_and_advance()
            cute.copy(s2t_sfa, tSsSFA[None, None, None, None, slot.index], tStSFA)
            cute.copy(s2t_sfb, tSsSFB[None, None, None, None, slot.index], tStSFB)
            for k_block in cutlass.range_constexpr(TILE_K // MMA_K):
                tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, None, k_block].iterator)
                tiled_mma.set(tcgen05.Field.SFB, tCtSFB[None, None, k_block].iterator)
                block = (None, None, k_block, slot.index)
                cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
            slot.release()
        acc_slot.commit()

    tmem.relinquish_alloc_permit()
    t2r_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(TILE_N), tcgen05.Pack.NONE), Float32)
    t2r = tcgen05.make_tmem_copy(t2r_atom, tCtAcc)
    thr_t2r = t2r.get_slice(thread)
    tDtAcc = thr_t2r.partition_S(tCtAcc)
    tDgC = thr_t2r.partition_D(tCgC)
    tDrAcc = cute.make_rmem_tensor(tDgC.shape, Float32)
    tDrC = cute.make_rmem_tensor(tDgC.shape, C_DTYPE)
    acc_slot = acc_consumer.wait_and_advance()
    cute.copy(t2r, tDtAcc, tDrAcc)
    cute.arch.fence_view_async_tmem_load()
    acc_slot.release()
    tDrC.store(tDrAcc.load().to(C_DTYPE))
    if block_x * CTA_M + thread < m:
        cute.autovec_copy(tDrC, tDgC)
    if warp == MMA_WARP and leads:
        acc_producer.tail()
    pipeline.sync(barrier_id=TMEM_BARRIER)
    tmem.free(tmem_ptr)


@cute.jit
def launch(
    a_ptr: cute.Pointer, b_ptr: cute.Pointer, sfa_ptr: cute.Pointer, sfb_ptr: cute.Pointer, c_ptr: cute.Pointer,
    m: Int32, n: Int32, k: Int32,
):  # fmt: skip
    """Launch one pair of CTAs for each 256x128 tile of a group."""
    k = cute.assume(k, divby=TILE_K)
    a = cute.make_tensor(a_ptr, cute.make_layout((m, k, 1), stride=(k, 1, m * k)))
    b = cute.make_tensor(b_ptr, cute.make_layout((n, k, 1), stride=(k, 1, n * k)))
    sfa = cute.make_tensor(sfa_ptr, blockscaled_utils.tile_atom_to_shape_SF(a.shape, SF_VEC))
    sfb = cute.make_tensor(sfb_ptr, blockscaled_utils.tile_atom_to_shape_SF(b.shape, SF_VEC))
    row = cute.assume(Int64(n), divby=TILE_N)
    c = cute.make_tensor(c_ptr, cute.make_layout((m, n, 1), stride=(row, 1, Int64(m) * n)))

    def mma(rows, group):
        op = tcgen05.MmaMXF4NVF4Op(SF_DTYPE, (rows, TILE_N, MMA_K), group, tcgen05.OperandSource.SMEM)
        return cute.make_tiled_mma(op)

    tiled_mma = mma(TILE_M, tcgen05.CtaGroup.TWO)
    # Each CTA needs the scale factors of all rows of B, so they are loaded like those of a single CTA.
    sfb_mma = mma(CTA_M, tcgen05.CtaGroup.ONE)
    a_layout = sm100_utils.make_smem_layout_a(tiled_mma, TILER_MNK, AB_DTYPE, STAGES)
    b_layout = sm100_utils.make_smem_layout_b(tiled_mma, TILER_MNK, AB_DTYPE, STAGES)
    sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, TILER_MNK, SF_VEC, STAGES)
    sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, TILER_MNK, SF_VEC, STAGES)
    cluster_layout = cute.tiled_divide(cute.make_layout((*CLUSTER, 1)), (tiled_mma.thr_id.shape,))
    sfb_cluster_layout = cute.tiled_divide(cute.make_layout((*CLUSTER, 1)), (sfb_mma.thr_id.shape,))
    stage = (None, None, None, 0)
    a_op = sm100_utils.cluster_shape_to_tma_atom_A(CLUSTER, tiled_mma.thr_id)
    b_op = sm100_utils.cluster_shape_to_tma_atom_B(CLUSTER, tiled_mma.thr_id)
    sfb_op = sm100_utils.cluster_shape_to_tma_atom_SFB(CLUSTER, tiled_mma.thr_id)
    shape = cluster_layout.shape
    a_atom, mA = cute.nvgpu.make_tiled_tma_atom_A(a_op, a, cute.slice_(a_layout, stage), TILER_MNK, tiled_mma, shape)
    b_atom, mB = cute.nvgpu.make_tiled_tma_atom_B(b_op, b, cute.slice_(b_layout, stage), TILER_MNK, tiled_mma, shape)
    sfa_atom, mSFA = cute.nvgpu.make_tiled_tma_atom_A(
        a_op, sfa, cute.slice_(sfa_layout, stage), TILER_MNK, tiled_mma, shape, internal_type=cutlass.Int16
    )
    sfb_atom, mSFB = cute.nvgpu.make_tiled_tma_atom_B(
        sfb_op, sfb, cute.slice_(sfb_layout, stage), SFB_TILER_MNK, sfb_mma, sfb_cluster_layout.shape,
        internal_type=cutlass.Int16,
    )  # fmt: skip
    gemm_kernel(
        tiled_mma, sfb_mma, (a_atom, b_atom, sfa_atom, sfb_atom), (mA, mB, mSFA, mSFB), c, cluster_layout,
        sfb_cluster_layout, a_layout, b_layout, sfa_layout, sfb_layout, m,
    ).launch(
        grid=(2 * cute.ceil_div(m, TILE_M), n // TILE_N, 1), block=(THREADS, 1, 1), cluster=(*CLUSTER, 1)
    )  # fmt: skip


def pointer(dtype, address, align=16):
    """A pointer to global memory, as a run-time argument."""
    return cute.runtime.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)


def pointers(a, b, sfa, sfb, c):
    """The arguments that are pointers."""
    fp4 = [pointer(AB_DTYPE, address) for address in (a, b)]
    return (*fp4, pointer(SF_DTYPE, sfa), pointer(SF_DTYPE, sfb), pointer(C_DTYPE, c, 32))


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
