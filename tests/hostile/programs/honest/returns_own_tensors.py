"""Writes to tensors of its own and returns those."""

import torch
from honest_gemm import compute


def custom_kernel(data):
    abc, *rest = data
    own = [(a, b, torch.empty_like(c)) for a, b, c in abc]
    return compute((own, *rest))
