"""NVIDIA/cutlass#3643 in a complete NVFP4 GEMM with CTA pairs: the kernel of ``two_cta``, edited.

Each CTA loads the scale factors of B for itself, on a barrier of its own. The first CTA's warp, which copies those of
both CTAs to tensor memory, waits for its own barrier alone; mended, the second CTA passes its completion on.
"""

from __future__ import annotations

from pathlib import Path

_BASE = Path(__file__).parents[1] / "sim" / "mutants" / "structures" / "two_cta.py"
_STORAGE = "        dealloc_barrier: cute.struct.MemRange[Int64, 1]\n"
_SFB_BYTES = "        + cute.size_in_bytes(SF_DTYPE, cute.slice_(sfb_layout, one_stage))\n"
_PIPELINE = "    ab_producer, ab_consumer ="
_LOAD = (
    "            cute.copy(atoms[3], tBgSFB[None, k_tile], tBsSFB[None, slot.index], "
    "tma_bar_ptr=bar, mcast_mask=sfb_mask)\n"
)
_MASK = "    sfb_mask = cpasync.create_tma_multicast_mask(sfb_cluster_layout, sfb_in_cluster, mcast_mode=1)\n"
_LOOP = "        for _ in cutlass.range(k_tiles, unroll=1):\n            slot = ab_consumer.wait_and_advance()\n"
_OP = "sm100_utils.cluster_shape_to_tma_atom_SFB(CLUSTER, tiled_mma.thr_id)"
_SHAPE = "SFB_TILER_MNK, sfb_mma, sfb_cluster_layout.shape,"
_PARTITION = "partition(atoms[3], sfb_in_cluster[1], sfb_ctas, sSFB"
_END = "    tmem.relinquish_alloc_permit()\n"
_IMPORT = "from cutlass import Float32"

_EDITS = {
    _STORAGE: f"""{_STORAGE}        sfb_full: cute.struct.MemRange[Int64, STAGES]
        sfb_peer: cute.struct.MemRange[Int64, STAGES]
""",
    _SFB_BYTES: "",
    _PIPELINE: f"""    sfb_bytes = cute.size_in_bytes(SF_DTYPE, cute.slice_(sfb_layout, one_stage))
    sfb_full, sfb_peer = storage.sfb_full.data_ptr(), storage.sfb_peer.data_ptr()
    if thread == 0:
        for i in cutlass.range_constexpr(STAGES):
            cute.arch.mbarrier_init(sfb_full + i, 1)
            cute.arch.mbarrier_init(sfb_peer + i, 1)
    cute.arch.mbarrier_init_fence()
{_PIPELINE}""",
    _LOAD: """            sfb_bar = sfb_full + slot.index
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(sfb_bar, sfb_bytes)
            cute.copy(atoms[3], tBgSFB[None, k_tile], tBsSFB[None, slot.index], tma_bar_ptr=sfb_bar)
""",
    _MASK: "",
    _LOOP: """        for tile in cutlass.range(k_tiles, unroll=1):
            slot = ab_consumer.wait_and_advance()
            cute.arch.mbarrier_wait(sfb_full + slot.index, tile // STAGES % 2)
""",
    _OP: "cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)",
    _SHAPE: "SFB_TILER_MNK, sfb_mma, (1, 1, 1, 1),",
    _PARTITION: "partition(atoms[3], 0, cute.make_layout(1), sSFB",
}
_WAIT = "            cute.arch.mbarrier_wait(sfb_full + slot.index, tile // STAGES % 2)\n"
_MENDED = {
    _WAIT: f"{_WAIT}            cute.arch.mbarrier_wait(sfb_peer + slot.index, tile // STAGES % 2)\n",
    _END: f"""    if warp == MMA_WARP and not leads:
        for tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(sfb_full + tile % STAGES, tile // STAGES % 2)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(sfb_peer + tile % STAGES, 0, scope=nvvm.MemScopeKind.CLUSTER)

{_END}""",
    _IMPORT: f"from cutlass._mlir.dialects import nvvm\n{_IMPORT}",
}


def source(*, mended: bool) -> str:
    """The text of the kernel file."""
    text = _BASE.read_text()
    for old, new in {**_EDITS, **(_MENDED if mended else {})}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
