"""Wrong kernels that accumulate or convert wrongly."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics.arrays import Float32, Float64, HalfBits
from pytest_nvfp4.numerics.kernel_model import TILE, TILE_K, Steps
from pytest_nvfp4.numerics.mutants.base import Mutant
from pytest_nvfp4.numerics.quantise import BLOCK


def _to_bits(values: Float64, *, mantissa_bits: int) -> Float64:
    """Round to nearest even with this many bits after the leading one."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(fraction, mantissa_bits + 1)), exponent - mantissa_bits - 1))


def _truncated(values: Float64, *, mantissa_bits: int) -> Float64:
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(fraction, mantissa_bits + 1)), exponent - mantissa_bits - 1))


_RING = 8
"""Stages of a deep pipeline."""


def _in_half(values: Float64) -> Float64:
    return fp16.round_nearest(values).astype(np.float64)


def _split_k(a: Float64, b: Float64) -> Float32:
    """Sum halves of k in fp32 and convert each to fp16 before they are added."""
    half = a.shape[1] // 2
    parts = [model.product(a[:, span], b[:, span]) for span in (slice(0, half), slice(half, None))]
    return np.add(*(_in_half(part.astype(np.float64)) for part in parts)).astype(np.float32)


def _shortened(length: int) -> model.Product:
    return lambda a, b: model.product(a[:, : max(0, a.shape[1] - length)], b[:, : max(0, b.shape[1] - length)])


def _repeated_stage(a: Float64, b: Float64) -> Float32:
    first = model.product(a[:, :TILE_K], b[:, :TILE_K])
    return (model.product(a, b).astype(np.float64) + first).astype(np.float32)


def _stale_stage(a: Float64, b: Float64) -> Float32:
    """Use the first k-tile's A for the second: a stage read before its copy arrived."""
    a = a.copy()
    if a.shape[1] >= 2 * TILE_K:
        a[:, TILE_K : 2 * TILE_K] = a[:, :TILE_K]
    else:
        a[:, TILE_K // 2 : TILE_K] = a[:, : TILE_K // 2]
    return model.product(a, b)


def _ring_not_flipped(a: Float64, b: Float64) -> Float32:
    """Use the previous k-tile of A from the ring's second turn on: its stages are not waited for."""
    turned = a.copy()
    turned[:, _RING * TILE_K :] = a[:, : max(0, a.shape[1] - _RING * TILE_K)]
    return model.product(turned, b)


def _early_warp(a: Float64, b: Float64) -> Float32:
    """Read lanes 96-127 of each row tile before the last k-tile is added."""
    out = model.product(a, b)
    late = np.arange(a.shape[0]) % TILE >= 96
    out[late] = model.product(a[late, :-TILE_K], b[:, :-TILE_K])
    return out


_ACCUMULATE: tuple[tuple[str, str, model.Product], ...] = (
    ("fp16_split_k", "k in two halves whose partial sums are fp16", _split_k),
    (
        "fp16_accumulate",
        "accumulator rounded to fp16 after each instruction",
        lambda a, b: model.accumulate(a, b, _in_half),
    ),
    (
        "bf16_accumulate",
        "accumulator rounded to bf16 after each instruction",
        lambda a, b: model.accumulate(a, b, lambda total: _to_bits(total, mantissa_bits=7)),
    ),
    (
        "bf16_split_k",
        "partial sums of 256 products kept as bf16",
        lambda a, b: model.accumulate(a, b, lambda total: _to_bits(total, mantissa_bits=7), step=TILE_K),
    ),
    (
        "accumulator_13_bits",
        "accumulator truncated to 13 bits after the leading one (as Hopper's FP8 MMA keeps it)",
        lambda a, b: model.accumulate(a, b, lambda total: _truncated(total, mantissa_bits=13)),
    ),
    ("last_block_dropped", "last 16 elements of k left out", _shortened(BLOCK)),
    ("last_k_tile_dropped", "last 256 elements of k left out", _shortened(TILE_K)),
    ("first_k_tile_twice", "first k-tile accumulated twice", _repeated_stage),
    ("stale_stage", "a pipeline stage of A read before its copy arrived", _stale_stage),
    ("ring_not_flipped", "a pipeline of 8 stages whose phase is not flipped after its first turn", _ring_not_flipped),
    ("early_warp", "one epilogue warp reads its accumulators before the last k-tile", _early_warp),
)


def _toward_zero(accumulators: Float32) -> HalfBits:
    bits = fp16.round_toward_zero(accumulators).view(np.uint16).copy()
    bits[np.isnan(accumulators)] = fp16.CANONICAL_NAN
    bits[np.isinf(accumulators)] = model.convert(accumulators[np.isinf(accumulators)])
    return bits


def _saturated(accumulators: Float32) -> HalfBits:
    return model.convert(np.clip(accumulators, -65504, 65504))


def _flushed(accumulators: Float32) -> HalfBits:
    bits = model.convert(accumulators)
    return np.where(bits & 0x7C00, bits, bits & 0x8000).astype(np.uint16)


def _through_bf16(accumulators: Float32) -> HalfBits:
    return model.convert(_to_bits(accumulators.astype(np.float64), mantissa_bits=7).astype(np.float32))


def _half_away(accumulators: Float32) -> HalfBits:
    """Round ties away from zero: add half an ulp to the magnitude's bits, then truncate."""
    bits = model.convert(accumulators)
    exact = accumulators.astype(np.float64)
    lower = fp16.round_toward_zero(exact).view(np.uint16)
    upper = lower + np.uint16(1)
    ends = np.abs(fp16.to_float64(lower)), np.abs(fp16.to_float64(upper))
    with np.errstate(invalid="ignore"):
        tie = (np.abs(exact) - ends[0] == ends[1] - np.abs(exact)) & np.isfinite(ends[1])
    return np.where(tie, upper, bits).astype(np.uint16)


_CONVERT: tuple[tuple[str, str, model.Convert], ...] = (
    ("fp16_toward_zero", "fp16 conversion rounds toward zero", _toward_zero),
    ("fp16_ties_away", "fp16 conversion rounds ties away from zero", _half_away),
    ("fp16_saturated", "fp16 conversion saturates at 65504 instead of giving infinity", _saturated),
    ("fp16_subnormal_flushed", "fp16 subnormals flushed to zero", _flushed),
    ("through_bf16", "accumulator converted to bf16 and then to fp16", _through_bf16),
)

ARITHMETIC: tuple[Mutant, ...] = (
    *(Mutant(name, "accumulate", text, Steps(product=product)) for name, text, product in _ACCUMULATE),
    *(Mutant(name, "convert", text, Steps(convert=convert)) for name, text, convert in _CONVERT),
)
