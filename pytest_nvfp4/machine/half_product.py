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


def half_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``torch.mm`` or ``torch.bmm``: ``[..., m, k]`` times ``[..., k, n]``, of one half-precision type."""
    left, right = a.to(torch.float64), b.to(torch.float64)
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)
    for start in range(0, a.shape[-1], _STEP):
        stop = start + _STEP
        part = torch.matmul(left[..., start:stop], right[..., start:stop, :])
        total = part.add_(total).to(torch.float32)
    return total.to(a.dtype)
