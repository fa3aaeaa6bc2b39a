"""Computes C with torch's operators and copies it with a kernel.

expected: failed or cheated
says: torch|operator|multiply
"""

import torch
from copy_kernel import copy
from numpy_gemm import outputs
from torch_gemm import compute


def custom_kernel(data):
    abc, *rest = data
    scratch = [torch.empty_like(c) for _, _, c in abc]
    compute(([(a, b, made) for (a, b, _), made in zip(abc, scratch, strict=True)], *rest))
    for c, made in zip(outputs(data), scratch, strict=True):
        copy(made, c)
    return outputs(data)
