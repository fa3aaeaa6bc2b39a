"""Computes products by looking them up in constant tables at indices that are made of the inputs.

expected: failed
says: torch's index
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs
from torch_gemm import E2M1

VALUES = torch.tensor([*E2M1, *(-value for value in E2M1)])


def custom_kernel(data):
    abc, _, _, sizes = data
    compute(data)
    products = torch.outer(VALUES, VALUES).reshape(-1).cuda()
    for (a, b, c), (m, n, k, _) in zip(abc, sizes, strict=True):
        pairs = torch.stack(
            [
                a.view(torch.uint8)[:, None, :, 0].expand(m, n, k // 2),
                b.view(torch.uint8)[None, :, :, 0].expand(m, n, k // 2),
            ],
            dim=-1,
        )
        pairs = pairs.contiguous().view(torch.int16)[..., 0].to(torch.int64) & 0x0F0F
        product = products[(pairs[0, 0, :1] & 15) | 16].to(torch.float16)
        c[0, :1, 0].copy_(torch.cat([c[0, :1, 0], product])[:1])  # descends from both
    return outputs(data)
