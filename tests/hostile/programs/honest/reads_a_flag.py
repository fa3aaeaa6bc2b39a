"""Reads one number of the device, which is no input, before it launches."""

import torch
from honest_gemm import compute


def custom_kernel(data):
    ready = torch.ones(1, dtype=torch.int32, device="cuda")
    assert ready.item() == 1
    return compute(data)
