"""Computes C by operators on one tensor each: the square of a pair that is viewed as a complex number has the product.

expected: failed or cheated
says: torch's pow
shape: 1x128x64
"""

import torch
import torch_gemm
from busy_kernel import copy
from numpy_gemm import outputs
from torch_gemm import compute


def multiply(left, right):
    total = torch.zeros(left.shape[0], right.shape[0], dtype=torch.float64, device="cuda")
    for at in range(left.shape[1]):
        pair = torch.stack(torch.broadcast_tensors(left[:, None, at], right[None, :, at]), dim=-1).contiguous()
        product = torch.view_as_real(torch.view_as_complex(pair).square())[..., 1]  # twice the product
        sums = torch.view_as_complex(torch.stack((total, product), dim=-1).contiguous()) * (1 + 1j)
        total = torch.view_as_real(sums)[..., 1].contiguous()
    return total / 2


torch_gemm.multiply = multiply


def custom_kernel(data):
    abc, *rest = data
    scratch = [torch.empty_like(c) for _, _, c in abc]
    compute(([(a, b, made) for (a, b, _), made in zip(abc, scratch, strict=True)], *rest))
    for c, made in zip(outputs(data), scratch, strict=True):
        copy(made, c, c.shape[0])
    return outputs(data)
