"""Writes to a tensor of its own, and copies it to C with a kernel."""

import torch
from copy_kernel import copy
from honest_gemm import compute


def custom_kernel(data):
    abc, *rest = data
    own = [(a, b, torch.empty_like(c)) for a, b, c in abc]
    for made, (_, _, c) in zip(compute((own, *rest)), abc, strict=True):
        copy(made, c)
    return [c for _, _, c in abc]
