"""Clusters: TMA multicast and 2-CTA MMA; PTX ISA, "cp.async.bulk.tensor" and "tcgen05.mma"."""

from __future__ import annotations

import torch
from cutlass.cute.nvgpu import tcgen05

from .feature import Feature
from .gemm import TileGemm, f16_op, gemm_feature


def cluster_feature(cluster: tuple[int, int], *, two_cta: bool = False, tile_m: int = 128) -> Feature:
    """A GEMM of two clusters, so that no address or mask may depend on the cluster's place in the grid."""
    ctas = 2 if two_cta else 1
    tile = (tile_m * ctas, 64, 64)
    along_m, along_n = cluster
    name = f"multicast_{along_m}x{along_n}" if not two_cta else f"two_cta_{tile[0]}_{along_m}x{along_n}"

    def gemm() -> TileGemm:
        # With 64 rows per CTA the right half of the columns lies in the upper lanes: one load takes all of them.
        load = tcgen05.Ld32x32bOp(tcgen05.Repetition.x32)
        columns = 64 if tile_m == 64 else 32
        return TileGemm(f16_op, tile=tile, cluster=cluster, two_cta=two_cta, load_op=load, columns=columns)

    opcodes = [f"tcgen05.mma.cta_group::{ctas}.kind::f16", "barrier.cluster.arrive", "barrier.cluster.wait"]
    if along_m > ctas or along_n > 1:
        opcodes += [
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.",
            f"tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.shared::cluster.multicast::cluster",
        ]
    if two_cta:
        opcodes += [
            "tcgen05.alloc.cta_group::2",
            "tcgen05.dealloc.cta_group::2",
            "tcgen05.relinquish_alloc_permit.cta_group::2",
            "mapa",
        ]
    return gemm_feature(
        name,
        gemm,
        mnk=(along_m * tile_m * 2, along_n * 64, 320),
        a_type=torch.float16,
        opcodes=tuple(opcodes),
    )


FEATURES = (
    cluster_feature((2, 1)),
    cluster_feature((1, 2)),
    cluster_feature((2, 2)),
    cluster_feature((2, 4)),
    cluster_feature((2, 1), two_cta=True),
    cluster_feature((2, 1), two_cta=True, tile_m=64),
    cluster_feature((4, 2), two_cta=True),
)
