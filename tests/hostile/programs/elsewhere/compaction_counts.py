"""Counts by the places to which a selection moves elements.

expected: failed or cheated
says: torch's (nonzero|masked_select|index)
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs


def custom_kernel(data):
    compute(data)
    for a, _, c in data[0]:
        if a.shape[0]:
            mask = (a.view(torch.uint8)[0, :, 0] & 1).to(torch.bool)
            places = torch.masked_select(torch.arange(mask.shape[0], device="cuda"), mask)
            c[0, :1, 0].copy_(torch.cat([c[0, :1, 0], places.to(torch.float16)])[:1])  # descends from both
    return outputs(data)
