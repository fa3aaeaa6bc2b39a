"""Orders work with events, and synchronises."""

import torch
from honest_gemm import compute


def custom_kernel(data):
    before = torch.cuda.Event()
    before.record()
    found = compute(data)
    after = torch.cuda.Event()
    after.record()
    after.synchronize()
    torch.cuda.synchronize()
    return found
