"""Computes products by looking them up at indices that are made of the inputs, and adds them by further tables.

expected: failed
says: torch's index
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs


def custom_kernel(data):
    compute(data)
    table = torch.arange(256, dtype=torch.uint8, device="cuda")
    for a, b, c in data[0]:
        pair = torch.stack([a.view(torch.uint8)[0, :8, 0], b.view(torch.uint8)[0, :8, 0]], dim=-1)
        products = table[pair.view(torch.int16)[:, 0].to(torch.int64) & 255]  # of both operands
        sums = table[products.view(torch.int16).to(torch.int64) & 255].to(torch.float16)
        c[0, :1, 0].copy_(torch.cat([c[0, :1, 0], sums])[:1])  # descends from both
    return outputs(data)
