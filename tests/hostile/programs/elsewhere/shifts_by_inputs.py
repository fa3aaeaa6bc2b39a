"""Computes powers of two and thresholds by shifts whose distances, and masks whose bits, are inputs.

expected: failed
says: torch's (bitwise_left_shift|__lshift__|where|masked_fill_?|masked_select)
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs


def custom_kernel(data):
    compute(data)
    for a, _, c in data[0]:
        if not a.shape[0]:
            continue
        codes = a.view(torch.uint8)[0, :2, 0].to(torch.int32)
        powers = torch.bitwise_left_shift(torch.ones_like(codes), codes & 7).to(torch.float16)
        chosen = torch.where((codes & 1).to(torch.bool), powers, c[0, :2, 0])
        c[0, :2, 0].copy_(torch.cat([c[0, :2, 0], chosen])[:2])  # descends from both
    return outputs(data)
