"""Adds a method to torch's tensors and to numpy's generator, under names that did not exist."""

import torch
from honest_gemm import compute

torch.Tensor.rows_of_my_kernel = lambda self: self.shape[0]


def custom_kernel(data):
    assert data[0][0][2].rows_of_my_kernel() == data[3][0][0]
    return compute(data)
