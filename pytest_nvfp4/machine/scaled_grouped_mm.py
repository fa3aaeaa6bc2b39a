"""``torch._scaled_grouped_mm`` and ``_scaled_grouped_mm_v2``, which torch's CPU backend lacks.

The groups of an operand with three dimensions are its first index. Where an operand has two, ``offs`` holds the ends of
the groups along its rows or columns: along m (2D by 3D), n (3D by 2D) or k (2D by 2D); ends along k count elements, not
bytes. Scales are one float32 for each row of the first operand and column of the second, or block scales in the layout
of cuBLAS (``scaled_mm``), those of each group padded to tiles by themselves and one group behind the other. With NVFP4,
the second list element holds a factor of the whole tensor, or of each group.

Elements of the result outside all groups are NaN; a GPU leaves them as they are. Products are computed as ``scaled_mm``
computes them.

Source of the shapes: torch's checks (``aten/src/ATen/native/cuda/GroupedBlas.cpp``) and its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.machine.scaled_mm import is_block_scaled, padded_scales, scaled_mm

_FP4: Final = getattr(torch, "float4_e2m1fn_x2", None)
# torch.nn.functional.ScalingType: a scale for a row; for 16 or 32 elements of one; factor of a whole tensor.
_ROWWISE, _BLOCKS, _TENSORWISE = 1, (2, 3), 0
_SWIZZLED: Final = 1

_Product = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


def scaled_grouped_mm(  # noqa: PLR0917 - the signature is torch's
    mat: torch.Tensor,
    other: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Compute ``torch._scaled_grouped_mm``.

    Raises:
        ValueError: incompatible sizes or types.
        HostSideError: a form without a stand-in.
    """
    del use_fast_accum  # selects how a GPU accumulates; the sums here are exact
    if bias is not None or scale_result is not None:
        raise ValueError("torch._scaled_grouped_mm: bias and scale_result are not supported yet, on no device")
    if is_block_scaled(mat, scale_a):
        product = _of_blocks(mat, other, scale_a, scale_b, None)
    elif scale_a.dtype == scale_b.dtype == torch.float32:
        product = _of_rows(mat, other, scale_a, scale_b)
    else:
        raise ValueError(f"torch._scaled_grouped_mm: scales of {scale_a.dtype} and {scale_b.dtype}")
    return _grouped(mat, other, offs, out_dtype, product)


def scaled_grouped_mm_v2(  # noqa: PLR0917 - the signature is torch's
    mat: torch.Tensor,
    other: torch.Tensor,
    scale_a: Sequence[torch.Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[torch.Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.scaled_grouped_mm``.

    Raises:
        HostSideError: scales without a stand-in.
        ValueError: see ``scaled_grouped_mm``.
    """
    recipe, swizzles = list(recipe_a), (list(swizzle_a), list(swizzle_b))
    if list(contraction_dim) not in ([], [-1, -2]):
        raise ValueError(
            f"torch.nn.functional.scaled_grouped_mm: contraction_dim {list(contraction_dim)} is not -1, -2"
        )
    if recipe != list(recipe_b) or recipe[:1] == [_TENSORWISE]:
        raise ValueError(
            f"torch.nn.functional.scaled_grouped_mm: no device multiplies with recipes {recipe} and {list(recipe_b)}"
        )
    if recipe == [_ROWWISE]:
        return scaled_grouped_mm(mat, other, scale_a[0], scale_b[0], offs, bias, None, out_dtype, use_fast_accum)
    if recipe[0] not in _BLOCKS or recipe[1:] not in ([], [_TENSORWISE]) or any(s[:1] != [_SWIZZLED] for s in swizzles):
        raise HostSideError(
            f"torch.nn.functional.scaled_grouped_mm: recipe {recipe} with swizzles {swizzles} has no stand-in without "
            "a GPU: block scales must be in the layout of cuBLAS (SWIZZLE_32_4_4)"
        )
    if bias is not None:
        raise ValueError("torch.nn.functional.scaled_grouped_mm: bias is not supported yet, on no device")
    whole = scale_a[1].to(torch.float64) * scale_b[1].to(torch.float64) if recipe[1:] else None
    return _grouped(mat, other, offs, out_dtype, _of_blocks(mat, other, scale_a[0], scale_b[0], whole))


def _grouped(
    mat: torch.Tensor, other: torch.Tensor, offs: torch.Tensor | None, out_dtype: torch.dtype | None, product: _Product
) -> torch.Tensor:
    """Multiply the groups, and put the results where the form of the operands has them."""
    if {mat.dim(), other.dim()} - {2, 3}:
        raise ValueError(f"torch._scaled_grouped_mm: operands of {mat.dim()} and {other.dim()} dimensions, not 2 or 3")
    if (offs is None) is (2 in {mat.dim(), other.dim()}):
        raise ValueError("torch._scaled_grouped_mm: offs are needed if an operand has two dimensions, and only then")
    if out_dtype not in (None, torch.bfloat16):
        raise ValueError(
            f"torch._scaled_grouped_mm: out_dtype is {out_dtype}; only bfloat16 is supported, on a GPU too"
        )
    groups = mat.shape[0] if mat.dim() == 3 else other.shape[0] if offs is None or other.dim() == 3 else len(offs)
    ends = [0, *([] if offs is None else offs.tolist())]
    if offs is not None and (
        offs.dtype != torch.int32 or offs.dim() != 1 or len(offs) != groups or sorted(ends) != ends
    ):
        raise ValueError(f"torch._scaled_grouped_mm: offs {offs} must be {groups} ascending numbers of int32")
    parts = [slice(None)] * groups if offs is None else [slice(*pair) for pair in pairwise(ends)]
    m, n = mat.shape[-2], other.shape[-1]
    along_k = mat.dim() == other.dim() == 2
    if ends[-1] > (mat.shape[1] * _packed(mat) if along_k else m if mat.dim() == 2 else n):
        raise ValueError(f"torch._scaled_grouped_mm: offs end at {ends[-1]}, outside the operand")
    out = torch.full((m, n) if mat.dim() != other.dim() else (groups, m, n), torch.nan, dtype=torch.bfloat16)
    for group, part in enumerate(parts):
        a, b, into = mat, other, out
        if along_k:
            few = slice(part.start // _packed(mat), part.stop // _packed(mat))
            a, b, into = mat[:, few], other[few], out[group]
        elif mat.dim() == 2:
            a, b, into = mat[part], other[group], out[part]
        elif other.dim() == 2:
            a, b, into = mat[group], other[:, part], out[:, part]
        else:
            a, b, into = mat[group], other[group], out[group]
        into.copy_(product(group, a, b))
    return out


def _packed(mat: torch.Tensor) -> int:
    """Return the number of elements in an item of an operand."""
    return 2 if mat.dtype == _FP4 else 1


def _of_blocks(
    mat: torch.Tensor, other: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, whole: torch.Tensor | None
) -> _Product:
    """Return the product of groups with block scales, called for one group after the other."""
    first, second = _taker(mat, scale_a, "first"), _taker(other, scale_b, "second")

    def product(group: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        factor = 1.0 if whole is None else float(whole.reshape(-1)[group if whole.numel() > 1 else 0])
        if not a.numel() or not b.numel():
            return torch.zeros(a.shape[0], b.shape[1])
        left, right = first(group, a, a.shape[0]), second(group, b.t(), b.shape[1])
        return scaled_mm(a, b, left, right, out_dtype=torch.float32, factor=factor)

    return product


def _taker(operand: torch.Tensor, scale: torch.Tensor, which: str) -> Callable[[int, torch.Tensor, int], torch.Tensor]:
    flat, taken = scale.contiguous().reshape(-1), 0

    def take(group: int, part: torch.Tensor, rows: int) -> torch.Tensor:
        nonlocal taken
        needed = padded_scales(rows, part.shape[1] * _packed(part), scale.dtype)
        start = group * needed if operand.dim() == 3 else taken
        taken = start + needed
        if taken > flat.numel():
            raise ValueError(
                f"torch._scaled_grouped_mm: the {which} operand has {flat.numel()} scales, and its first {group + 1} "
                f"groups need {taken}, with each group's rows padded to 128 and its scales of a row to 4"
            )
        return flat[start:taken]

    return take


def _of_rows(mat: torch.Tensor, other: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> _Product:
    """Return the product of groups with a scale for each row and column, called for one group after the other."""
    along_k = mat.dim() == other.dim() == 2
    taken = [0, 0]

    def scales(side: int, group: int, count: int, scale: torch.Tensor, *, stacked: bool) -> torch.Tensor:
        start = group * count if along_k else taken[side]
        taken[side] = start + count
        found = scale[group] if stacked else scale.reshape(-1)[start : start + count]
        if found.shape != (count,):
            raise ValueError(f"torch._scaled_grouped_mm: scales of shape {list(scale.shape)} do not fit the operands")
        return found.to(torch.float64)

    def product(group: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left = scales(0, group, a.shape[0], scale_a, stacked=mat.dim() == 3)
        right = scales(1, group, b.shape[1], scale_b, stacked=other.dim() == 3)
        values: Any = a.to(torch.float64) @ b.to(torch.float64)
        return (values * left[:, None] * right[None, :]).to(torch.float32)  # type: ignore[no-any-return]

    return product
