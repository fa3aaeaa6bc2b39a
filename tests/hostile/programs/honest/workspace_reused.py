"""Allocates a workspace once, zeroes it with torch before each call, and lets the GEMM write to C."""

import torch
from honest_gemm import compute

SPACE = {}


def custom_kernel(data):
    space = SPACE.setdefault("x", torch.empty(4096, dtype=torch.int32, device="cuda"))
    space.zero_()
    return compute(data)
