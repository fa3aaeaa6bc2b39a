"""Converts scale factors that a kernel has copied, and the result of its GEMM, with torch between its kernels."""

import torch
from copy_kernel import copy
from honest_gemm import compute


def converted(scales):
    """Return scale factors that a kernel has copied, by way of fp32."""
    words = scales.permute(5, 2, 4, 0, 1, 3).contiguous()
    made = torch.empty_like(words)
    copy(words.view(torch.float16), made.view(torch.float16))
    return made.to(torch.float32).to(scales.dtype).permute(3, 4, 1, 5, 2, 0)


def custom_kernel(data):
    abc, plain, reordered, sizes = data
    own = [(a, b, torch.empty_like(c)) for a, b, c in abc]
    made = compute((own, plain, [tuple(map(converted, pair)) for pair in reordered], sizes))
    for one, (_, _, c) in zip(made, abc, strict=True):
        c.copy_(one.to(torch.float32))
    return [c for _, _, c in abc]
