"""What the simulator says of NVIDIA's own kernels, examined finding by finding.

The kernels are those of nvidia-cutlass-operators 0.3.0 (for DSL 4.8), which `nvfp4 exec --races` ran with a comparison
of its own against torch, and examples of CUTLASS's folder ``experimental/primitives/tcgen05``, whose texts were typed
without their comments, with the comparisons that they have. All of it is *simulated*; nothing ran on a B200.

Without any finding, in the eager schedule, at small sizes: the persistent dense GEMM (static and CLC scheduler, one and
two CTAs, fp16 and int8), with preferred and fallback clusters (2x2, 4x1), with an epilogue of functions (EFC), block
scaled (NVFP4 2x1, MXFP4 2x2), contiguous grouped, mixed input (int8 and uint8), for sm_90a (2x1) and sm_80 by
``mma.sync``; ``tmem_ld_st``, ``tmem_ld_to_stmatrix_transpose`` (five types) and three variants of
``slicek_m32n8k128``. The dense one with preferred clusters, the NVFP4, TGV and grouped ones have none in the lazy
schedule either.
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
        "cutlass.operators TgvGemmOperator (64x8, 64x16, 64x32)",
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
)
