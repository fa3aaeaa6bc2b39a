"""Uploads a table of the addresses of its operands, anew for every call."""

import torch
from honest_gemm import compute


def custom_kernel(data):
    addresses = [[a.data_ptr(), b.data_ptr(), c.data_ptr()] for a, b, c in data[0]]
    table = torch.tensor(addresses, dtype=torch.int64, device="cuda")
    assert table.numel() == 3 * len(addresses)
    return compute(data)
