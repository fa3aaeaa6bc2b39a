"""Handles views of its operands: reshaped, permuted, sliced, and their metadata."""

import torch
from honest_gemm import compute


def custom_kernel(data):
    for (a, _, c), (sfa, _) in zip(data[0], data[2], strict=True):
        assert a.view(torch.uint8).permute(2, 0, 1).shape[0] == 1
        assert c[:, :, 0].t().stride(0) == c.stride(1)
        assert sfa.permute(5, 2, 4, 0, 1, 3).dim() == 6
        assert c.untyped_storage().nbytes() >= c.numel() * c.element_size()
    return compute(data)
