"""``tcgen05.mma`` of every plain kind: f16 (and bf16), tf32, f8f6f4 and i8; PTX ISA, "tcgen05.mma"."""

from __future__ import annotations

from typing import Any

import cutlass
import torch
from cutlass.cute.nvgpu import tcgen05

from .gemm import K_MAJOR, SMEM, TileGemm, f16_op, gemm_feature


def f16() -> TileGemm:
    return TileGemm(f16_op, tile=(128, 64, 64))


def f16_accumulating_in_f16() -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaF16BF16Op(cutlass.Float16, cutlass.Float16, (*shape, 16), group, SMEM, K_MAJOR, K_MAJOR)

    # Two neighbouring columns of 16 bits arrive in one register.
    load = tcgen05.Ld32x32bOp(tcgen05.Repetition.x32, tcgen05.Pack.PACK_16b_IN_32b)
    return TileGemm(op, tile=(128, 64, 64), accumulator=cutlass.Float16, load_op=load, columns=64)


def bf16() -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (*shape, 16), group, SMEM, K_MAJOR, K_MAJOR)

    return TileGemm(op, tile=(128, 96, 64))


def f16_m64() -> TileGemm:
    return TileGemm(f16_op, tile=(64, 64, 64), load_op=tcgen05.Ld16x256bOp(tcgen05.Repetition.x4))


def tf32() -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaTF32Op((*shape, 8), group, SMEM, K_MAJOR, K_MAJOR)

    return TileGemm(op, tile=(128, 64, 32))


def f8() -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaFP8Op(cutlass.Float8E4M3FN, cutlass.Float32, (*shape, 32), group, SMEM, K_MAJOR, K_MAJOR)

    return TileGemm(op, tile=(128, 64, 128))


def f8_mixed() -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaF8F6F4Op(
            cutlass.Float8E4M3FN, cutlass.Float8E5M2, cutlass.Float32, (*shape, 32), group, SMEM, K_MAJOR, K_MAJOR
        )

    return TileGemm(op, tile=(128, 64, 128))


def i8() -> TileGemm:
    def op(shape: tuple[int, int], group: tcgen05.CtaGroup) -> Any:
        return tcgen05.MmaI8Op(cutlass.Int8, (*shape, 32), group, SMEM, K_MAJOR, K_MAJOR)

    return TileGemm(op, tile=(128, 64, 128), accumulator=cutlass.Int32)


FEATURES = (
    gemm_feature(
        "mma_f16", f16, mnk=(256, 128, 320), a_type=torch.float16, opcodes=("tcgen05.mma.cta_group::1.kind::f16",)
    ),
    gemm_feature(
        "mma_f16_ragged",  # extents that no tile divides: TMA fills with zeros, the M and N tiles are whole
        f16,
        mnk=(128, 64, 264),
        a_type=torch.float16,
        c_type=torch.float16,
        opcodes=("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.ld.sync.aligned.32x32b.x32.b32"),
    ),
    gemm_feature(
        "mma_f16_f16_accumulator",
        f16_accumulating_in_f16,
        mnk=(128, 64, 320),
        a_type=torch.float16,
        c_type=torch.float16,
        bounds=(-1, 2),
        opcodes=("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.ld.sync.aligned.32x32b.x32.pack::16b.b32"),
    ),
    gemm_feature(
        "mma_f16_m64",  # half of the lanes of each quadrant hold the 64 rows
        f16_m64,
        mnk=(64, 64, 320),
        a_type=torch.float16,
        opcodes=("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.ld.sync.aligned.16x256b.x4.b32"),
    ),
    gemm_feature(
        "mma_bf16",
        bf16,
        mnk=(128, 96, 320),
        a_type=torch.bfloat16,
        opcodes=("tcgen05.mma.cta_group::1.kind::f16",),
    ),
    gemm_feature(
        "mma_tf32", tf32, mnk=(128, 64, 160), a_type=torch.float32, opcodes=("tcgen05.mma.cta_group::1.kind::tf32",)
    ),
    gemm_feature(
        "mma_f8",
        f8,
        mnk=(128, 64, 640),
        a_type=torch.float8_e4m3fn,
        elements=("Float8E4M3FN", "Float8E4M3FN"),
        opcodes=("tcgen05.mma.cta_group::1.kind::f8f6f4",),
    ),
    gemm_feature(
        "mma_f8_mixed",
        f8_mixed,
        mnk=(128, 64, 640),
        a_type=torch.float8_e4m3fn,
        b_type=torch.float8_e5m2,
        elements=("Float8E4M3FN", "Float8E5M2"),
        opcodes=("tcgen05.mma.cta_group::1.kind::f8f6f4",),
        needs=("cute.nvgpu.tcgen05.MmaF8F6F4Op",),
    ),
    gemm_feature(
        "mma_i8",
        i8,
        mnk=(128, 64, 640),
        a_type=torch.int8,
        c_type=torch.int32,
        bounds=(-128, 128),
        opcodes=("tcgen05.mma.cta_group::1.kind::i8",),
    ),
)
