"""Computes C with torch's operators, and copies it with a kernel that does all multiply-adds of the problem.

expected: failed or cheated
says: torch
"""

import torch
from busy_kernel import copy
from numpy_gemm import outputs
from torch_gemm import compute


def custom_kernel(data):
    abc, *rest = data
    scratch = [torch.empty_like(c) for _, _, c in abc]
    compute(([(a, b, made) for (a, b, _), made in zip(abc, scratch, strict=True)], *rest))
    for c, made in zip(outputs(data), scratch, strict=True):
        copy(made, c, c.shape[0])
    return outputs(data)
