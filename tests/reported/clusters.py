"""CTAs of a cluster: mailboxes, arrives of a narrow scope, ends that come too early, pairs for the tensor core."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, utils
from cutlass._mlir.dialects import nvvm
from cutlass.cute import arch
from cutlass.cute.nvgpu import cpasync, tcgen05

from tests.sim.features.perthread import ptx32

from .launching import Body, launch
from .stages import bulk_atoms

CLUSTER = nvvm.MemScopeKind.CLUSTER
CTA = nvvm.MemScopeKind.CTA
WORDS = 128
COLUMNS = 32

STORE = "{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, $2; st.shared::cluster.u32 [a], $3; mov.b32 $0, 0; }"
LOAD = "{ .reg .b32 a; mapa.shared::cluster.u32 a, $1, $2; ld.shared::cluster.u32 $0, [a]; }"
COPY = "{ .reg .b64 d; mov.b64 d, {$2, 0x00004008}; tcgen05.cp.cta_group::2.32x128b.warpx4 [$1], d; mov.b32 $0, 0; }"
"""512 bytes at a shared address of each CTA of the pair, whose descriptor's lower word is $2, to TMEM."""


@cute.jit
def meet() -> None:
    """A cluster barrier that orders no memory."""
    arch.cluster_arrive_relaxed()
    arch.cluster_wait()


def mailboxes(mended: bool) -> Body:
    """Each CTA clears its mailbox and writes into its peer's."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        mailbox = smem.allocate_tensor(Int32, cute.make_layout(32), byte_alignment=16)
        posted = smem.allocate_array(Int64, 1)
        if thread == 0:
            arch.mbarrier_init(posted, 32)
        arch.mbarrier_init_fence()
        if cutlass.const_expr(mended):
            mailbox[thread] = Int32(0)
        arch.cluster_arrive()
        arch.cluster_wait()
        if cutlass.const_expr(not mended):
            mailbox[thread] = Int32(0)
        ptx32(STORE, (mailbox.iterator + thread).toint(), rank ^ 1, x[rank, thread])
        arch.mbarrier_arrive(posted, rank ^ 1, scope=CLUSTER)
        arch.mbarrier_wait(posted, 0)
        y[rank, thread] = mailbox[thread]
        meet()

    return body


def trampoline(mended: bool) -> Body:
    """A warp of the second CTA waits for copies of its CTA, and passes that on to the first one's barrier."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        factors = smem.allocate_tensor(Int32, cute.make_layout(WORDS), byte_alignment=16)
        copied = smem.allocate_array(Int64, 2)
        ready = copied + 1
        if thread == 0:
            arch.mbarrier_init(copied, 32)
            arch.mbarrier_init(ready, 1)
        arch.mbarrier_init_fence()
        meet()
        if rank == 1:
            if thread < 32:
                atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=128)
                copy = cute.make_tiled_copy_tv(atom, cute.make_layout(32), cute.make_layout(4))
                mine = copy.get_slice(thread)
                cute.copy(copy, mine.partition_S(x[0, None]), mine.partition_D(factors))
                arch.cp_async_mbarrier_arrive_noinc(copied)
            else:
                arch.mbarrier_wait(copied, 0)
                with arch.elect_one():
                    arch.mbarrier_arrive(ready, 0, scope=CLUSTER if mended else CTA)
        if rank == 0:
            arch.mbarrier_wait(ready, 0)
            y[0, thread] = ptx32(LOAD, (factors.iterator + thread).toint(), 1)
        meet()

    return body


def leaves(mended: bool) -> Body:
    """The first CTA releases two stages of the second, which waits for one of them and ends."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        empty = smem.allocate_array(Int64, 2)
        if thread == 0:
            arch.mbarrier_init(empty, 1)
            arch.mbarrier_init(empty + 1, 1)
        arch.mbarrier_init_fence()
        meet()
        y[rank, thread] = x[rank, thread]
        if rank == 0 and thread == 0:
            arch.mbarrier_arrive(empty, 1)
            arch.mbarrier_arrive(empty + 1, 1)
        if rank == 1:
            arch.mbarrier_wait(empty, 0)
        if cutlass.const_expr(mended):
            meet()

    return body


@cute.jit
def pair_copy(address: Any, column: Int32, copied: cute.Pointer) -> None:
    """Copy 512 bytes of both CTAs' shared memory to their TMEM, and announce it in both."""
    with arch.elect_one():
        ptx32(COPY, column, (address >> 4) | 0x00010000)
        tcgen05.commit(copied, 3, tcgen05.CtaGroup.TWO)


def scale_factors(mended: bool, *, asynchronous: bool) -> Body:
    """A pair copies scale factors of both CTAs to TMEM; the first CTA issues, the second loaded its own half.

    ``asynchronous``: by a bulk copy that its own barrier counts, otherwise by ``cp.async`` and an arrive at the first
    CTA's barrier.
    """

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        sfb = smem.allocate_tensor(Int32, cute.make_layout(WORDS), byte_alignment=128)
        loaded = smem.allocate_array(Int64, 3)
        ready, copied = loaded + 1, loaded + 2
        place = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        if thread == 0:
            arch.mbarrier_init(loaded, 1)
            arch.mbarrier_init(ready, 1)
            arch.mbarrier_init(copied, 1)
        arch.mbarrier_init_fence()
        meet()
        if warp == 0:
            arch.alloc_tmem(COLUMNS, place.iterator, is_two_cta=True)
        arch.sync_threads()
        column = place[0]
        if cutlass.const_expr(asynchronous):
            load, _ = bulk_atoms()
            if thread == 32:
                arch.mbarrier_arrive_and_expect_tx(loaded, 4 * WORDS)
                cute.copy(load, *cpasync.group_bulk_copy_modes(x[rank, None], sfb), mbar_ptr=loaded)
            if cutlass.const_expr(mended):  # noqa: SIM102 (decided when tracing)
                if rank == 1 and warp == 1:
                    arch.mbarrier_wait(loaded, 0)
                    with arch.elect_one():
                        arch.mbarrier_arrive(ready, 0, scope=CLUSTER)
        else:
            if warp == 1:
                atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=128)
                copy = cute.make_tiled_copy_tv(atom, cute.make_layout(32), cute.make_layout(4))
                mine = copy.get_slice(arch.lane_idx())
                cute.copy(copy, mine.partition_S(x[rank, None]), mine.partition_D(sfb))
                arch.cp_async_commit_group()
                arch.cp_async_wait_group(0)
                arch.fence_proxy("async.shared", space="cta")
                arch.sync_warp()
                with arch.elect_one():
                    if rank == 0:
                        arch.mbarrier_arrive(loaded)
                    else:
                        arch.mbarrier_arrive(ready, 0, scope=CLUSTER if mended else CTA)
        if warp == 0 and rank == 0:
            arch.mbarrier_wait(loaded, 0)
            if cutlass.const_expr(mended or not asynchronous):
                arch.mbarrier_wait(ready, 0)
            pair_copy(sfb.iterator.toint(), column, copied)
        arch.mbarrier_wait(copied, 0)
        y[rank, thread] = x[rank, thread]
        arch.cluster_arrive()
        arch.cluster_wait()
        if warp == 0:
            arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            arch.dealloc_tmem(arch.retrieve_tmem_ptr(Int32, 16, place.iterator), COLUMNS, is_two_cta=True)

    return body


def allocates(mended: bool) -> Body:
    """A pair allocates TMEM, before or after its CTAs have met."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        place = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        if cutlass.const_expr(mended):
            meet()
        if warp == 0:
            arch.alloc_tmem(COLUMNS, place.iterator, is_two_cta=True)
        arch.sync_threads()
        y[rank, thread] = x[rank, thread] + place[0]
        arch.cluster_arrive()
        arch.cluster_wait()
        if warp == 0:
            arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            arch.dealloc_tmem(arch.retrieve_tmem_ptr(Int32, 16, place.iterator), COLUMNS, is_two_cta=True)

    return body


def frees(mended: bool) -> Body:
    """A pair allocates TMEM, and one CTA frees it without knowing that the peer's allocation has returned."""

    @cute.jit
    def body(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        smem = utils.SmemAllocator()
        place = smem.allocate_tensor(Int32, cute.make_layout(1), byte_alignment=16)
        meet()
        if warp == 0:
            arch.alloc_tmem(COLUMNS, place.iterator, is_two_cta=True)
        arch.sync_threads()
        y[rank, thread] = x[rank, thread] + place[0]
        if cutlass.const_expr(mended):
            meet()
        if warp == 0:
            arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            arch.dealloc_tmem(arch.retrieve_tmem_ptr(Int32, 16, place.iterator), COLUMNS, is_two_cta=True)
        meet()

    return body


LAUNCHES = {
    "NVIDIA/cutlass#3435": launch(frees, rows=2, columns=64, ctas=2, threads=64, cluster=2),
    "NVIDIA/cutlass#3643": launch(
        lambda mended: scale_factors(mended, asynchronous=True), rows=2, columns=WORDS, ctas=2, cluster=2
    ),
    "NVIDIA/cutlass#3647": launch(
        lambda mended: scale_factors(mended, asynchronous=False), rows=2, columns=WORDS, ctas=2, cluster=2
    ),
    "NVIDIA/cutlass#3324": launch(trampoline, rows=1, columns=WORDS, ctas=2, threads=64, cluster=2),
    "NVIDIA/cutlass#3316": launch(allocates, rows=2, columns=64, ctas=2, threads=64, cluster=2),
    "NVIDIA/cutlass#3598": launch(mailboxes, rows=2, columns=32, ctas=2, threads=32, cluster=2),
    "sgl-project/sglang#32954": launch(leaves, rows=2, columns=32, ctas=2, threads=32, cluster=2),
}
