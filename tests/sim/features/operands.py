"""Shared-memory operands of ``tcgen05.mma``: swizzles, both majors, smallest and largest N; PTX ISA, "tcgen05.mma"."""

from __future__ import annotations

from typing import Any

import cutlass
import torch
from cutlass.cute.nvgpu import tcgen05

from .feature import Feature
from .gemm import SMEM, OperandMajorMode, TileGemm, f16_op, gemm_feature

SPLIT = 5


def operand_feature(name: str, tile: tuple[int, int, int], *, columns: int = 32) -> Feature:
    """Five tiles of K through two stages. The tile's K decides the swizzle: 64, 32 or 16 values of fp16 to a row."""
    return gemm_feature(
        name,
        lambda: TileGemm(f16_op, tile=tile, columns=columns),
        mnk=(tile[0], tile[1], SPLIT * tile[2]),
        a_type=torch.float16,
        opcodes=("tcgen05.mma.cta_group::1.kind::f16", f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32"),
    )


def mn_major(tile: tuple[int, int, int], *, two_cta: bool = False) -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        mode = OperandMajorMode.MN
        return tcgen05.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (*shape, 16), group, SMEM, mode, mode)

    cluster = (2, 1) if two_cta else (1, 1)
    return TileGemm(op, tile=tile, cluster=cluster, two_cta=two_cta)


FEATURES = (
    operand_feature("operand_swizzle_64b", (128, 64, 32)),
    operand_feature("operand_swizzle_32b", (128, 64, 16)),
    operand_feature("operand_n16", (128, 16, 64), columns=16),
    operand_feature("operand_n256", (128, 256, 64), columns=128),
    gemm_feature(
        "operand_mn_major",
        lambda: mn_major((128, 64, 64)),
        mnk=(256, 64, 320),
        a_type=torch.float16,
        transposed=True,
        opcodes=("tcgen05.mma.cta_group::1.kind::f16",),
    ),
    gemm_feature(
        "operand_mn_major_narrow",  # 32 values to a row of N: another swizzle
        lambda: mn_major((128, 32, 64)),
        mnk=(128, 32, 320),
        a_type=torch.float16,
        transposed=True,
        opcodes=("tcgen05.mma.cta_group::1.kind::f16",),
    ),
    gemm_feature(
        "operand_mn_major_two_cta",
        lambda: mn_major((256, 128, 64), two_cta=True),
        mnk=(256, 128, 320),
        a_type=torch.float16,
        transposed=True,
        opcodes=("tcgen05.mma.cta_group::2.kind::f16",),
    ),
)
