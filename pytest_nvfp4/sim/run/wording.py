"""What instructions are called in the language of a kernel's source, for hints.

A hint writes a PTX name, or a phrase, in angle brackets, ``<bar.warp.sync>``. It stays, and what the author writes for
it follows in parentheses, if the language has a word for it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_nvfp4.sim.ptx.syntax import Kernel

_DSL_KERNEL = "kernel_cutlass_"
"""Beginning of the names that CuTe DSL gives kernels."""
_CLUSTER = "cuda::ptx::fence(sem_acq_rel, scope_cluster)"


class _Words(NamedTuple):
    """What an instruction is called; empty where a language has no word for it."""

    dsl: str = ""
    cuda: str = ""
    triton: str = ""


_WORDS = {
    "%ctaid": _Words("cute.arch.block_idx", "blockIdx", "tl.program_id"),
    "atom or red": _Words("cute.arch.atomic_add", "atomicAdd", "tl.atomic_add"),
    "bar.sync": _Words("cute.arch.barrier", "__syncthreads()", "tl.debug_barrier()"),
    "bar.warp.sync": _Words("cute.arch.sync_warp", "__syncwarp()"),
    "barrier.cluster": _Words("cute.arch.cluster_arrive, cluster_wait", "cooperative_groups::this_cluster().sync()"),
    "cp.async.bulk.wait_group.read 0": _Words(
        "cute.arch.cp_async_bulk_wait_group(0, read=True)",
        "cuda::ptx::cp_async_bulk_wait_group_read",
        "Gluon's tma.store_wait(0)",
    ),
    "elect.sync": _Words("cute.arch.elect_one", "cuda::ptx::elect_sync"),
    "fence.acq_rel.cluster": _Words("cute.arch.fence_acq_rel_cluster", _CLUSTER),
    "fence.acq_rel.gpu": _Words("cute.arch.fence_acq_rel_gpu", "__threadfence()"),
    "fence.mbarrier_init": _Words("cute.arch.mbarrier_init_fence()", "cuda::ptx::fence_mbarrier_init"),
    "fence.proxy.async": _Words(
        "cute.arch.fence_proxy, fence_view_async_shared", "cuda::ptx::fence_proxy_async", "Gluon's fence_async_shared()"
    ),
    "griddepcontrol.wait": _Words(
        "cute.arch.griddepcontrol_wait", "cudaGridDependencySynchronize()", "tl.extra.cuda.gdc_wait()"
    ),
    "ld.acquire.gpu": _Words(triton='tl.atomic_add(flag, 0, sem="acquire")'),
    ".release.cluster": _Words(
        "cute.arch.mbarrier_arrive(..., scope=nvvm.MemScopeKind.CLUSTER)",
        "cuda::ptx::mbarrier_arrive(sem_release, scope_cluster, ...)",
    ),
    "mbarrier.try_wait": _Words("pipeline.consumer_wait", "cuda::ptx::mbarrier_try_wait", "Gluon's mbarrier.wait"),
    ".acquire.cluster": _Words(
        "scope=MBarrierScope.CLUSTER of the DSL's primitives, whose default is .cta",
        "cuda::ptx::mbarrier_try_wait(sem_acquire, scope_cluster, ...)",
    ),
    "programmatic dependent launch": _Words(
        "use_pdl", "cudaLaunchAttributeProgrammaticStreamSerialization", "launch_pdl"
    ),
    "st.release.gpu": _Words(triton='tl.atomic_xchg(flag, 1, sem="release")'),
    "tcgen05.commit": _Words(
        "pipeline.consumer_release of the MMA warp", "cuda::ptx::tcgen05_commit", "Gluon's tcgen05_commit"
    ),
    "tcgen05.fence::after_thread_sync": _Words("nvvm.tcgen05_fence", "cuda::ptx::tcgen05_fence_after_thread_sync"),
    "tcgen05.fence::before_thread_sync": _Words("nvvm.tcgen05_fence", "cuda::ptx::tcgen05_fence_before_thread_sync"),
    "tcgen05.wait::ld": _Words("cute.arch.fence_view_async_tmem_load", "cuda::ptx::tcgen05_wait_ld"),
    "tcgen05.wait::st": _Words("cute.arch.fence_view_async_tmem_store", "cuda::ptx::tcgen05_wait_st"),
    "initialise an mbarrier once": _Words(
        "TmemAllocator of nvidia-cutlass-dsl 4.4 initialises that of a CTA pair again behind each branch that uses it, "
        "4.5 does not"
    ),
    "in every stage": _Words("pipeline.producer_tail, PipelineProducer.tail"),
    "wait for it": _Words("pipeline.producer_acquire"),
    "write the variable on each path before its first use": _Words(
        "a tensor in registers holds arbitrary values until fill, a copy or an assignment writes its elements"
    ),
    "wait_group.read 0": _Words("the tensor map manager's update_tensormap executes both"),
}
_MARKED = re.compile(f"<({'|'.join(map(re.escape, _WORDS))})>")


def worded(text: str, kernel: Kernel) -> str:
    """Return a text in which the words of the kernel's language follow the instructions in angle brackets."""
    language = _language(kernel)

    def spelled(match: re.Match[str]) -> str:
        name: str = match[1]
        words = getattr(_WORDS[name], language, "")
        return f"{name} ({words})" if words else name

    return _MARKED.sub(spelled, text)


def _language(kernel: Kernel) -> str:
    """Return the field of ``_Words`` of the language of a kernel; empty if the kernel was written in PTX."""
    if kernel.name.startswith(_DSL_KERNEL):
        return "dsl"
    file = next((ins.location.file for ins in kernel.instructions if ins.location is not None), None)
    if file is None or file.endswith(".ptx"):
        return ""
    return "triton" if kernel.llvm else "cuda"
