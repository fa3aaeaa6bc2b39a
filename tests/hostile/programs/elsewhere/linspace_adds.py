"""Adds two numbers as the middle of a range that begins and ends at inputs.

expected: failed
says: torch's linspace
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs


def custom_kernel(data):
    compute(data)
    for a, b, c in data[0]:
        if a.shape[0]:
            first, last = (tensor.view(torch.uint8)[0, 0, 0].to(torch.float32) for tensor in (a, b))
            middle = torch.linspace(first, last, 3, device="cuda")[1:2].to(torch.float16)
            c[0, :1, 0].copy_(torch.cat([c[0, :1, 0], middle])[:1])  # descends from both
    return outputs(data)
