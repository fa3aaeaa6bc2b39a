"""Computes a bit of C by casts alone: the rounding of an integer that is packed of two operands is a logic gate.

expected: failed
says: torch's (_to_copy|copy_)
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs


def custom_kernel(data):
    compute(data)
    for a, b, c in data[0]:
        if not a.shape[0]:
            continue
        pair = torch.stack([a.view(torch.uint8)[0, :8, 0], b.view(torch.uint8)[0, :8, 0]], dim=-1)
        four = torch.cat([pair, pair], dim=-1).contiguous().view(torch.int32)[:, 0]
        rounded = four.to(torch.float32).view(torch.int32)  # 24 of 32 bits, the last with a carry
        word = (rounded & 1).to(torch.uint8).view(torch.uint8).repeat(2).view(torch.float16)[:1]
        c[0, :2, 0].copy_(torch.cat([c[0, :2, 0], word])[:2])  # descends from both
    return outputs(data)
