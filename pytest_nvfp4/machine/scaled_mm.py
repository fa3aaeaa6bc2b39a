"""``torch._scaled_mm`` with block scales, which torch's CPU backend lacks, as cuBLAS computes it on a Blackwell GPU.

Operands are 4-bit (``float4_e2m1fn_x2``, two to a byte, the lower half first) with a scale for 16 elements of k
(``float8_e4m3fn``, NVFP4) or 32 (``float8_e8m0fnu``), or 8-bit with one ``float8_e8m0fnu`` for 32 (MXFP8). Scales come
in the layout of cuBLAS ("1D Block Scaling Factors Layout"): tiles of 128 rows and 4 columns of scales, 512 bytes each,
in which row r and column c have the offset ``r % 32 * 16 + r // 32 * 4 + c``; tiles follow each other along k first.
The tensor core reads NVFP4's scales as UE4M3, which has no sign (PTX ISA, "Alternate floating-point data formats"): the
sign bit of a scale is ignored, as the simulator's ``tcgen05.mma`` does. GPU MODE's references draw negative scales.

Products and their sums are computed in float64, exactly for all sizes that fit, and rounded once to float32, the
accumulator's type, and once to the output's type. A GPU rounds its accumulator more often.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4: Final = getattr(torch, "float4_e2m1fn_x2", None)
_FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_ROWS, _COLUMNS = 128, 4
# torch.nn.functional.ScalingType and SwizzleType.
_TENSORWISE, _BLOCK_16, _BLOCK_32 = 0, 2, 3
_SWIZZLED = 1


def is_block_scaled(mat: torch.Tensor, scale: torch.Tensor) -> bool:
    """Return whether an operand has a scale for each block of 16 or 32 elements of k."""
    return scale.dtype == torch.float8_e8m0fnu or (mat.dtype == _FP4 and scale.dtype == torch.float8_e4m3fn)


def scaled_mm(  # noqa: PLR0917 - the signature is torch's
    mat: torch.Tensor,
    other: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    factor: float = 1.0,
) -> torch.Tensor:
    """Compute ``torch._scaled_mm`` of block-scaled operands on the CPU.

    Args:
        mat: ``[m, k]`` (``[m, k / 2]`` for 4-bit elements).
        other: ``[k, n]``, transposed: its columns are contiguous along k.
        scale_a, scale_b: ``ceil(m / 128) * 128 * ceil(k / block / 4) * 4`` scales, and the same of n.
        bias: ``[n]``.
        factor: Factor of all products (the scales of whole tensors).

    Raises:
        ValueError: incompatible sizes or types.
        HostSideError: a form without a stand-in.
    """
    del use_fast_accum  # selects how a GPU accumulates 8-bit products; the sums here are exact
    if scale_result is not None:
        raise HostSideError("torch._scaled_mm: scale_result of block-scaled operands has no stand-in without a GPU")
    a, b = _elements(mat), _elements(other.t())
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"torch._scaled_mm: k is {a.shape[1]} in the first operand and {b.shape[1]} in the second")
    a = a * _spread(mat, scale_a, a.shape, "first")
    b = b * _spread(other, scale_b, b.shape, "second")
    product = (a @ b.t()).mul_(factor).to(torch.float32)
    if bias is not None:
        product = product + bias.to(torch.float32)
    return product.to(out_dtype or torch.bfloat16)


def scaled_mm_v2(  # noqa: PLR0917 - the signature is torch's
    mat: torch.Tensor,
    other: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: list[int] | tuple[()] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.scaled_mm`` of block-scaled operands, with or without a scale of the whole tensor.

    Raises:
        HostSideError: scales that are not swizzled, or a contraction over other dimensions.
        ValueError: see ``scaled_mm``.
    """
    if contraction_dim:
        raise HostSideError("torch.nn.functional.scaled_mm: contraction_dim has no stand-in without a GPU")
    factor = 1.0
    for scales, recipe, swizzle in ((scale_a, recipe_a, swizzle_a), (scale_b, recipe_b, swizzle_b)):
        if recipe[0] not in (_BLOCK_16, _BLOCK_32) or swizzle[:1] != [_SWIZZLED] or recipe[1:] not in ([], [0]):
            raise HostSideError(
                f"torch.nn.functional.scaled_mm: recipe {recipe} with swizzle {swizzle} has no stand-in without a GPU: "
                "block scales must be in the layout of cuBLAS (SWIZZLE_32_4_4)"
            )
        if recipe[1:] == [_TENSORWISE]:
            factor *= float(scales[1].item())
    return scaled_mm(mat, other, scale_a[0], scale_b[0], bias, None, out_dtype, use_fast_accum, factor=factor)


def _elements(mat: torch.Tensor) -> torch.Tensor:
    """Return the elements ``[rows, k]`` in float64."""
    if mat.dtype in _FP8:
        return mat.to(torch.float64)
    if mat.dtype != _FP4:
        raise HostSideError(f"torch._scaled_mm: elements of {mat.dtype} with block scales have no stand-in")
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=torch.float64)
    codes = mat.view(torch.uint8).to(torch.int64)
    return values[torch.stack((codes & 15, codes >> 4), dim=-1)].flatten(1)


def _block(scales: torch.dtype) -> int:
    return 16 if scales == torch.float8_e4m3fn else 32


def padded_scales(rows: int, k: int, scales: torch.dtype) -> int:
    """Return the number of block scales of an operand, padded to whole tiles."""
    columns = -(-k // _block(scales))
    return -(-rows // _ROWS) * _ROWS * -(-columns // _COLUMNS) * _COLUMNS


def _spread(mat: torch.Tensor, scale: torch.Tensor, shape: Any, which: str) -> torch.Tensor:
    """Return the scale of every element, ``[rows, k]`` in float64."""
    rows, k = shape
    block = _block(scale.dtype)
    columns = -(-k // block)
    tiles, groups = -(-rows // _ROWS), -(-columns // _COLUMNS)
    needed = padded_scales(rows, k, scale.dtype)
    if scale.numel() != needed or not scale.is_contiguous():
        raise ValueError(
            f"torch._scaled_mm: the {which} operand of {rows} x {k} elements of {mat.dtype} needs {needed} contiguous "
            f"scales of {scale.dtype}, and has {scale.numel()} (shape {list(scale.shape)}, stride {scale.stride()})"
        )
    tiled = scale.reshape(tiles, groups, 32, 4, _COLUMNS).to(torch.float32).to(torch.float64)
    if scale.dtype == torch.float8_e4m3fn:
        tiled = tiled.abs()
    plain = tiled.permute(0, 3, 2, 1, 4).reshape(tiles * _ROWS, groups * _COLUMNS)[:rows, :columns]
    return plain.repeat_interleave(block, dim=1)[:, :k]
