"""Reads the maximum of the scale factors, and only reports it."""

import torch
from honest_gemm import compute


def custom_kernel(data):
    largest = max(float(sfa.to(torch.float32).max().item()) for sfa, _ in data[2])
    assert largest >= 0
    return compute(data)
