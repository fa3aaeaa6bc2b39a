"""What the simulator says of NVIDIA's own kernels, examined finding by finding.

The kernels are those of nvidia-cutlass-operators 0.3.0 (for DSL 4.8), which `nvfp4 exec --races` ran with a comparison
of its own against torch, and examples of CUTLASS's folder ``experimental/primitives/tcgen05``, whose texts were typed
without their comments, with the comparisons that they have. All of it is *simulated*; nothing ran on a B200.

Without any finding, in the eager schedule, at small sizes: the persistent dense GEMM (static and CLC scheduler, one and
two CTAs, fp16 and int8), with preferred and fallback clusters (2x2, 4x1), with an epilogue of functions (EFC), block
scaled (NVFP4 2x1, MXFP4 2x2), contiguous grouped, mixed input (int8 and uint8), for sm_90a (2x1) and sm_80 by
``mma.sync``; ``tmem_ld_st``, ``tmem_ld_to_stmatrix_transpose`` (five types), four variants of ``slicek_m32n8k128``,
``1cta_mma_pipeline``, ``1cta_mma_basic`` with one tile of K (types, scales, collector) and ``clusterMxN_2cta_mma`` by
single CTAs. The folder's 14 examples pass their own comparison in each variant that ran to its end. The dense one with
preferred clusters, the NVFP4, TGV and grouped ones have none in the lazy schedule either.

Examples of CUTLASS 4.4 that flashinfer 0.7.2 carries, unchanged, with their own comparisons, under DSL 4.8.1 and with
races searched for, without any finding: ``tutorial_gemm`` (``fp16_gemm_0`` to ``3``, ``nvfp4_gemm_0`` and ``1``), dense
with prefetch, block scaled with prefetch and with amax, mixed input (dense, grouped, with scaled accumulators),
``fmha``, ``reduce``, those of ``experimental/blackwell`` (dense, block scaled, 2 CTAs, pipeline) and the dense GEMM for
GeForce; ``cp_narrow_a_to_tmem_mma`` and ``1cta_mma_a_from_tmem`` of ``experimental/primitives/tcgen05`` in each
variant; and, once each: block scaled (NVFP4, MXFP8 by pairs, sm_103a), dense (alpha and beta, software pipeline, TMA
store), ``blockwise_gemm`` and ``contiguous_grouped_gemm``, the custom and the activation epilogue, ``mamba2_ssd``,
``rmsnorm``, grouped by pairs with maps in global memory; for sm_90a dense, persistent, ``fmha`` and ``cta_norm``, and
of the folder ``ampere`` flash attention, HSTU attention, sgemm and tensorop GEMM. ``dense_gemm_ptr_array``,
``mixed_input_fmha_decode`` and the grouped GEMM of ``hopper`` are refused by DSL 4.8.1 itself: they are written for
4.4. So are ``fp16_gemm_3_1`` to ``6`` and ``dense_gemm_persistent_dynamic`` (cluster launch control, pairs, preferred
and fallback clusters) as they stand; with the alignment of the CLC response that their newest texts have, they run
without any finding, ``fp16_gemm_6`` in the lazy schedule, too.

Under DSL 4.4.0, those of CUTLASS 4.4.2 that flashinfer 0.6.7 carries, with races searched for, without any finding:
``tutorial_gemm`` (``fp16_gemm_0`` and ``1``, ``nvfp4_gemm_0`` and ``1``), dense, persistent (static and dynamic),
software pipeline, block scaled by single CTAs (with prefetch, amax, sm_103a), grouped (fp16 and NVFP4), blockwise,
``fmha``, mixed input, ``rmsnorm``, ``reduce``, for GeForce and persistent for sm_90a.

Of the newest folders, typed like the others: ``1cta_mma_mn_major`` in four shapes, ``02_copy_tma`` of
``experimental/task_scheduling``, and of ``experimental/primitives`` ``tma_tensormap_replace``,
``cp_async_shared_global_swizzled``, ``barrier_cta_red`` and the reductions of ``cluster_smem_reduce`` by ``red`` and by
``atom`` (without its tree). Of other libraries, with comparisons of their own: tokenspeed-mla 2.0.4's decoding in FP8
by 64 rows with ``tcgen05.mma.ws`` and its ``fmha``, flashlib 0.4.0's GEMM for sm_90a, lightmoe 0.1.0 (NVFP4: dense GEMM
with one and two CTAs and overlapping accumulators, grouped with static and dynamic schedulers and with operands
exchanged, quantisers, prefill and decoding of a layer of experts), and quack 0.6.5's GEMMs: for sm_100a ``gemm_dact``,
``gemm_dgated``, gathered rows, NVFP4 and MXFP8, for sm_90a plain, ``gemm_act``, ``gemm_dact`` and gathered rows. GPU
MODE's templates of ``nvfp4_gemv``, ``nvfp4_gemm`` and ``nvfp4_dual_gemm`` have no race, under DSL 4.8.1 and 4.4.0.

Of flashinfer 0.7.4, beside torch: ``prims_ts`` (task scheduling: NVFP4 linear and SwiGLU by pairs in clusters of 2x2
with cluster launch control, paged decoding, MLA decoding of 16 heads), ``mm_fp4`` in CuTe DSL (split-K by DSMEM, one
and two CTAs; for sm_120a the default and ``b12x``), ``mm_bf16`` with split-K; quack's ``gemm`` and FlashAttention 4
with cluster launch control, forward: no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EXAMINED", "Examined"]


@dataclass(frozen=True)
class Examined:
    """A finding, and what it is.

    Attributes:
        example: The kernel.
        finding: Kind and subject of the finding.
        verdict: ``real``: the code permits it, on some timing. ``warning``: reported as a warning, and the run goes on.
            ``harmless``: nothing can go wrong; it is reported no more.
        reason: What decides.
        shown: The test, as ``module::function``, that shows that the finding stays, or is reported no more.
    """

    example: str
    finding: str
    verdict: Literal["real", "warning", "harmless"]
    reason: str
    shown: str


EXAMINED = (
    Examined(
        "cutlass.operators TgvGemmOperator (64x8, 64x16, 64x32); flashinfer 0.7.2 low_latency_blockscaled_gemm (NVFP4)",
        "race and tmem: tcgen05.dealloc frees the accumulator while the MMAs write it and before the epilogue loads it",
        "real",
        "One mbarrier counts 32 arrivals of the MMA warp and 128 of the epilogue, for the allocation and again for the "
        "deallocation. The MMA warp arrives for the second time without a wait for the first phase, and its wait for "
        "parity 1 returns at once while that phase is incomplete. Only the time that the epilogue warps take to their "
        "first arrive, shorter than the loads of A and B, hides it; in the lazy schedule nothing is found.",
        "tests.reported.test_examined::test_a_second_arrive_without_a_wait_for_the_first_phase",
    ),
    Examined(
        "slicek_m32n8k128, async_s32_smem and n_group_smem_a_reuse_wdm",
        "race-warning: tcgen05.mma reads A by the async proxy, which cp.async wrote by the generic one",
        "warning",
        "cp.async.wait_group and a barrier order the copies, and no fence.proxy.async follows them. The ISA requires "
        "it; kernels of NVIDIA omit it behind cp.async, so it is no error.",
        "tests.sim.races.test_idioms::test_official_kernels_leave_out_the_proxy_fence_behind_cp_async_alone",
    ),
    Examined(
        "slicek_m32n8k128, n_group_a_tmem_shift_wdm",
        "uninitialised: tcgen05.ld of rows that disable-output-lane keeps from being written",
        "harmless",
        "Each lane loads its row, and only the lanes of written rows use it, behind a guard that is computed after the "
        "load. A use in another lane would be found.",
        "tests.sim.run.test_undefined::test_registers_of_matrices_and_of_tensor_memory",
    ),
    Examined(
        "slicek_m32n8k128, n_group_a_tmem_shift_wdm",
        "unsupported: tcgen05.mma with .ashift",
        "harmless",
        "It was not modelled; the example shows what it does.",
        "tests.sim.tcgen05.test_a_in_tmem::test_a_shift_of_a_is_seen_by_the_next_product",
    ),
    Examined(
        "cutlass.operators PersistentDenseGemmOperator and PersistentDenseBlockScaledGemmOperator, --race-warnings",
        "race-warning: no tcgen05.wait::ld before the registers are used and the columns are freed; no "
        "tcgen05.fence::after_thread_sync before the loads of the accumulator",
        "warning",
        "The ISA asks for them. True dependencies keep the values right; nearly all kernels of NVIDIA omit both, so "
        "they are reported on request only.",
        "tests.sim.races.test_warnings::test_each_kind_of_omission_is_told",
    ),
    Examined(
        "flashinfer 0.7.2 low_latency_blockscaled_gemm (NVFP4)",
        "race: the kernel that is timed writes C on a stream of its own while torch's zeros of another stream do",
        "real",
        "The tensors of cutlass.testing.benchmark are made on the default stream, and with one workspace nothing makes "
        "the stream that is timed wait for them. Their values are thrown away, so that only the first time can differ.",
        "tests.device.test_stream_races::test_a_launch_on_a_side_stream",
    ),
    Examined(
        "1cta_mma_a_from_tmem --ashift",
        "wrong values in rows 31, 63 and 95",
        "harmless",
        "The shift crossed the 32 lanes of a warp, which the example excludes: it was a defect of the simulator.",
        "tests.sim.tcgen05.test_a_in_tmem::test_a_shift_of_a_is_seen_by_the_next_product",
    ),
    Examined(
        "mcast_clusterMxN_1cta_mma and mcast_clusterMxN_2cta_mma, in clusters with other CTAs or pairs",
        "race: a CTA may end before a peer's multicast tcgen05.commit has used its shared memory",
        "real",
        "The last commit arrives at the empty barriers of all peers, and no CTA waits for that phase, nor is there a "
        "cluster barrier at the end. In the lazy schedule a CTA has left; with a cluster barrier behind the "
        "deallocation nothing is found.",
        "tests.sim.races.test_leaving::test_an_arrive_at_a_peer_comes_before_its_end",
    ),
    Examined(
        "2cta_mma_basic, 2cta_mma_tma_store, clusterMxN_2cta_mma and mcast_clusterMxN_2cta_mma",
        "race: tcgen05.alloc.cta_group::2 between the arrive and the wait of the first cluster barrier",
        "real",
        "The ISA asks that the peer has started; it is CUTLASS's issue 3316 in another example. With the wait before "
        "the allocation nothing is found. CTAs of a cluster start nearly together, which hides it.",
        "tests.sim.races.test_idioms::test_a_peer_with_which_tensor_memory_is_allocated_has_started",
    ),
    Examined(
        "1cta_mma_basic --mnk with several tiles of K",
        "race: the copy of the next tile of K writes what the MMA before may still read",
        "real",
        "One stage, and no commit to its empty barrier on this path; the example's own commands have one tile. "
        "With a commit and a wait nothing is found.",
        "tests.sim.races.test_idioms::test_pipelines",
    ),
    Examined(
        "2cta_mma_blockscale_m128",
        "race: tcgen05.cp reads scale factors that the peer's cp.async wrote, behind a wait of .acquire.cta",
        "real",
        "The scope is the default of the DSL's primitives and leaves the peer out; nothing else makes its writes "
        "visible. With scope=MBarrierScope.CLUSTER nothing is found. Whether hardware shows it is not known.",
        "tests.sim.races.test_scopes::test_what_is_told",
    ),
    Examined(
        "slicek_m32n8k128, async_s32_smem and n_group_smem_a_reuse_wdm",
        "race-warning: cp.async writes what tcgen05.mma reads, without fence.proxy.async",
        "warning",
        "The ISA asks for the fence, and 2cta_mma_blockscale_m128 has it in the same place.",
        "tests.sim.races.test_warnings::test_each_kind_of_omission_is_told",
    ),
    Examined(
        "CUTLASS 4.4 mla_decode_fp16, mla_decode_fp8, mixed_input_fmha_prefill_d256 and d512",
        "race: tcgen05.mma of a pair reads what the peer's threads stored, behind an arrive of .cta scope",
        "real",
        "PipelineAsyncUmma arrives at the leader's mbarrier without a scope. DSL 4.8.1 says at mbarrier_arrive that "
        "the formal order needs .cluster, and that the default relies on current hardware. With "
        "fence.acq_rel.cluster before the commits of mla_decode it is found no more. Each CTA's tensor core reads its "
        "own shared memory, so that hardware may not show it; but an example was mended in the same place (#3647).",
        "tests.sim.races.test_scopes::test_what_is_told",
    ),
    Examined(
        "CUTLASS 4.4 mla_decode_fp8",
        "race: a CTA may end before the leader's multicast tcgen05.commit has used its shared memory",
        "real",
        "The last commit releases P in both CTAs, and no thread of the peer waits for it.",
        "tests.sim.races.test_leaving::test_an_arrive_at_a_peer_comes_before_its_end",
    ),
    Examined(
        "CUTLASS 4.4 fmha_bwd and mixed_input_fmha_prefill_d256 and d512",
        "race, or tmem: a warp frees columns that other warps may still load",
        "real",
        "The barrier before tcgen05.dealloc has the compute warps of fmha_bwd only, and its reduce warps load dQ; the "
        "softmax warps of the others have no barrier there, and no tail of a pipeline orders their loads.",
        "tests.sim.races.test_tensor_order::test_columns_are_freed_behind_their_last_load",
    ),
    Examined(
        "CUTLASS 4.4 mixed_input_fmha_prefill_d512",
        "race: O's second half is written over the columns of S while they may be loaded; deadlock with one tile of K",
        "real",
        "The first acquire of the pipeline that guards these columns passes at once, one use before the softmax warps "
        "have loaded S. With one tile they release first, and that acquire waits for a phase that nothing completes. "
        "The time that V takes to be converted hides the race.",
        "tests.sim.races.test_idioms::test_pipelines",
    ),
    Examined(
        "CUTLASS 4.4 masked_grouped_gemm",
        "out-of-bounds: the scheduler reads the number of rows of the group behind the last one",
        "real",
        "It advances past the last tile and then reads gidx_mapping with that tile's coordinate. The value is not "
        "used, and memory is allocated behind so small a tensor, so that a GPU does not fault.",
        "tests.sim.run.test_device_memory::test_a_read_of_freed_memory_names_it",
    ),
    Examined(
        "CUTLASS 4.4 dense, block scaled and custom epilogue with CTA pairs, under DSL 4.4.0 to 4.4.2",
        "race: the arrive of the deallocation at the peer's mbarrier is not ordered behind its mbarrier.init",
        "real",
        "TmemAllocator initialises that mbarrier again behind each dynamic branch that uses the allocator, the later "
        "times behind the cluster barrier: an arrive that comes before is lost. DSL 4.5 does so once, and nothing is "
        "found. The time that the epilogue takes hides it.",
        "tests.sim.races.test_idioms::test_an_initialisation_that_is_repeated_before_any_use_is_named_as_such",
    ),
    Examined(
        "CUTLASS 4.4 mixed_input_fmha_decode, under DSL 4.4.0",
        "race: tcgen05.mma accumulates in columns that tcgen05.st sets to zero, without tcgen05.wait::st",
        "real",
        "Only a named barrier is between the store of O's zeros and the MMA, and tcgen05.st completes asynchronously. "
        "The time of the first S and softmax hides it.",
        "tests.sim.races.test_tensor_order::test_what_is_left_out_is_an_error",
    ),
    Examined(
        "flashinfer 0.7.4 dense_mxfp8_gemm_warp_splitk (K = 5120, whose stages are used again)",
        "race: cp.async overwrites scale factors that lanes load by ld.shared; lane 0 alone arrives behind elect.sync",
        "real",
        "In the PTX memory model an order comes from program order, synchronisation and their transitive closure. The "
        "arrive is a release of lane 0 and covers what that lane did before. elect.sync, mma.sync and shfl.sync wait "
        "until all lanes execute them, and the ISA gives a memory order between the lanes to bar.warp.sync alone. A "
        "warp issues its loads of shared memory and the arrive in order, and the products need the loaded values, so "
        "that hardware may not show it, but the compiler may move a load over elect.sync. With sync_warp before the "
        "election nothing is found.",
        "tests.sim.races.test_lane_order::test_lane_0_releases_what_all_have_done",
    ),
    Examined(
        "cuDNN's front end 1.32 nsa_top_k_reduction_fwd",
        "setmaxnreg: two of the four warps of a warpgroup execute it",
        "real",
        "The load and the MMA warp do, the two others of the warpgroup end at once. The ISA asks that all warps of the "
        "warpgroup execute the same setmaxnreg, and says nothing of warps that have ended.",
        "tests.sim.sync.test_control::test_a_whole_warpgroup_executes_it",
    ),
    Examined(
        "CUTLASS 4.4 programmatic_dependent_launch",
        "race: kernels on a side stream read and write tensors that the default stream fills, and reads at the end",
        "real",
        "The streams of torch do not wait for the default stream, and nothing else orders the two.",
        "tests.device.test_stream_races::test_a_launch_on_a_side_stream",
    ),
    Examined(
        "CUTLASS 4.4 grouped_gemm and grouped_blockscaled_gemm, tensor maps in shared memory",
        "race-warning: a tensor map of 128 bytes is published, of which 64 were never written",
        "warning",
        "The DSL copies a template of 64 bytes, and the others hold no field of a map: the copies are right.",
        "tests.sim.races.test_maps::test_bytes_that_are_published_and_were_never_written",
    ),
    Examined(
        "lightmoe 0.1.0 InferenceMoE, a call behind calibrate",
        "race: the dispatch writes the offsets of the experts while the grouped GEMM before may read them",
        "real",
        "The GEMM lets the next launch begin in its first instructions (use_pdl). The dispatch writes its outputs "
        "before griddepcontrol.wait, or has none. With equal routes the same values are written.",
        "tests.sim.races.test_overlapping::test_pairs",
    ),
    Examined(
        "lightmoe 0.1.0 InferenceMoE.run_decode, quack 0.6.5 gemm with A_idx",
        "race-warning: an MMA or tcgen05.cp reads what cp.async wrote, without fence.proxy.async",
        "warning",
        "The ISA asks for the fence; see slicek_m32n8k128.",
        "tests.sim.races.test_warnings::test_each_kind_of_omission_is_told",
    ),
    Examined(
        "lightmoe 0.1.0 InferenceMoE.run_decode",
        "uninitialised: tcgen05.cp of a block of 128 scale factors, of which 8 rows are gathered",
        "harmless",
        "An MMA with 8 columns reads no others. The words are undefined now, and a use of them would be found.",
        "tests.sim.tcgen05.test_ptx::test_rows_that_are_not_loaded_matter_once_their_results_are_used",
    ),
    Examined(
        "quack 0.6.5 gemm with A_idx for sm_90a, in clusters",
        "race: wgmma reads what the CTA's own cp.async wrote, behind a wait of .acquire.cta",
        "harmless",
        "Its cp.async arrives at the barrier that is waited for; it was a defect of the race check.",
        "tests.sim.races.test_scopes::test_what_cp_async_of_the_own_cta_releases_where_a_peer_arrives_too",
    ),
    Examined(
        "mcast_clusterMxN_1cta_mma and mcast_clusterMxN_2cta_mma --K_TILE 32",
        "out-of-bounds: cp.async.bulk.tensor writes behind the stages in shared memory",
        "real",
        "The examples accept a K_TILE of 32 with a swizzle of 128 bytes, whose rows take 128 bytes, and reserve 64.",
        "tests.sim.tma.test_tile::test_a_row_narrower_than_the_swizzle_begins_a_span_of_its_own",
    ),
    Examined(
        "tma_multicast and cluster_tmem_reduce of experimental/primitives",
        "race: threads behind barrier.cluster.arrive.relaxed read what TMA or peers wrote before it",
        "real",
        "A relaxed arrive orders no memory, as cluster_smem_reduce of the same folder says. With one that releases "
        "nothing is found of it. Whether hardware shows it is not known.",
        "tests.sim.races.test_scopes::test_a_relaxed_arrive_between_two_accesses_is_named",
    ),
    Examined(
        "cluster_tmem_reduce of experimental/primitives",
        "race: tcgen05.ld reads columns that tcgen05.cp may still write",
        "real",
        "tcgen05.wait::st between the two waits for tcgen05.st alone. A commit of the copy and a wait order them.",
        "tests.sim.races.test_tensor_order::test_what_is_left_out_is_an_error",
    ),
    Examined(
        "cp_async_mbarrier_arrive_cluster of experimental/primitives",
        "race: rank 0 reads what the peer's cp.async wrote, behind a wait of .acquire.cta",
        "real",
        "See 2cta_mma_blockscale_m128: the scope is the default of the DSL's primitives.",
        "tests.sim.races.test_scopes::test_what_is_told",
    ),
    Examined(
        "pipeline_software_fill and tma_pipeline_pingpong of experimental/primitives, with more tiles than stages",
        "race: a stage is filled again while lanes load it; lane 0 alone arrives behind elect.sync",
        "real",
        "See dense_mxfp8_gemm_warp_splitk. Both have a barrier of the warp before the loads, and none behind them.",
        "tests.sim.races.test_lane_order::test_lane_0_releases_what_all_have_done",
    ),
    Examined(
        "gemm_M128_N128_Kany_TN_warpspec_multistage of experimental/primitives",
        "race between lanes of a warp; setmaxnreg: one warp of the warpgroup executes it, in each turn of the loop",
        "real",
        "All lanes of the producer load the phase of a stage from shared memory and toggle it there, without a "
        "barrier of the warp. The ISA asks that all warps of the warpgroup execute the same setmaxnreg.",
        "tests.sim.sync.test_control::test_a_whole_warpgroup_executes_it",
    ),
    Examined(
        "flashinfer 0.7.4 prims_ts.batch_prefill (D = 128, dense and ragged)",
        "race and exit-before-read: warps write O to shared memory that a TMA store may still read",
        "real",
        "gmem_o_store_wait_after_write holds for paired heads and for a head dimension in stages. In other "
        "configurations the storing warp executes no wait_group before it releases the stage, nor before it ends.",
        "tests.sim.tma.test_store::test_a_group_that_is_not_committed_or_not_waited_for_is_found",
    ),
    Examined(
        "flashinfer 0.7.4 prims_ts.batch_mla_decode_with_paged_kv_cache (128 heads, pairs of CTAs)",
        "race: tcgen05.mma reads what the peer's threads stored, behind an arrive of .cta scope; setmaxnreg: three of "
        "four warps execute the second one",
        "real",
        "As in mla_decode. The MMA warp of the CTA that issues no MMA skips its task, and the setmaxnreg at its start.",
        "tests.sim.races.test_scopes::test_what_is_told",
    ),
    Examined(
        "flashinfer 0.7.4 prims_ts.fp8_linear, N not a multiple of the tile",
        "out-of-bounds: the epilogue loads scales of columns behind the last one",
        "real",
        "The load of the tile's weight_scale has no guard, while that of rows and the stores have one.",
        "tests.sim.run.test_gang::test_a_fault_names_the_warp_and_lane",
    ),
    Examined(
        "FlashAttention 4 (4.0.0b36), backward, pairs of CTAs",
        "race: tcgen05.mma reads what the peer's threads stored, behind an arrive of .cta scope; exit-before-read: the "
        "last cp.reduce.async.bulk of dK and dV; race: a CTA may end before a peer's multicast commit",
        "real",
        "As in mla_decode. The loop over parts of dK and dV commits and waits behind all of them but the last.",
        "tests.sim.races.test_leaving::test_an_arrive_at_a_peer_comes_before_its_end",
    ),
    Examined(
        "a public nvfp4_group_gemm, persistent, two stages of the accumulator, epilogue warps that skip rows beyond M",
        "race: the MMA of the next tile writes columns that a warp without valid rows loads and does not use",
        "harmless",
        "The value is dead on each path behind the arrive. A load whose value may be used there is still found.",
        "tests.sim.races.test_pending_loads::test_a_load_of_tmem_whose_value_is_not_used_behind_the_arrive",
    ),
)
