"""Matrix products of half-precision device tensors, in the order of a tensor core instead of torch's CPU code.

A GPU's library adds the products of ``fp16`` and ``bf16`` to an accumulator of 32 bits, 16 elements of k at a time
(``mma.m16n8k16``), and rounds to half at the end. Reference code that compares a kernel with ``torch.mm`` bit by bit or
to 1e-5 relies on that; torch's CPU code adds in another order. Here each step's 16 exact products and the accumulator
are summed in float64 and rounded to float32, like the simulated ``mma.sync``. Which kernel a real library selects, and
so its order for large k, is unknown.
"""

from __future__ import annotations

from typing import Final

import torch

LARGEST: Final = 1 << 31
"""Largest product, in multiplications; torch computes larger ones, because this order is much slower."""
_STEP: Final = 16
_HALVES: Final = (torch.float16, torch.bfloat16)


def is_half_product(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two matrices, or batches of them, have half precision and a product of at most ``LARGEST``."""
    return a.dtype in _HALVES and a.dtype == b.dtype and a.numel() * b.shape[-1] <= LARGEST


def half_product(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return ``torch.mm`` or ``torch.bmm``: ``[..., m, k]`` times ``[..., k, n]``, of one half-precision type.

    ``out_dtype`` is the type of the result; None is that of the operands.
    """
    left, right = a.to(torch.float64), b.to(torch.float64)
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)
    for start in range(0, a.shape[-1], _STEP):
        stop = start + _STEP
        part = torch.matmul(left[..., start:stop], right[..., start:stop, :])
        total = part.add_(total).to(torch.float32)
    return total.to(out_dtype or a.dtype)


def typed_product(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Return ``torch.mm`` or ``torch.bmm`` with ``out_dtype``, which torch has for GPUs only. Raises RuntimeError."""
    if out_dtype != a.dtype and (out_dtype != torch.float32 or a.dtype not in _HALVES):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    if is_half_product(a, b):
        return half_product(a, b, out_dtype)
    return torch.matmul(a.to(torch.float32), b.to(torch.float32)).to(out_dtype)


def typed_sum(
    addend: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Return ``torch.addmm`` or ``torch.baddbmm`` with ``out_dtype``. Raises RuntimeError."""
    product = alpha * typed_product(a, b, torch.float32 if a.dtype in _HALVES else out_dtype)
    return (product + beta * addend.to(product.dtype) if beta else product).to(out_dtype)
