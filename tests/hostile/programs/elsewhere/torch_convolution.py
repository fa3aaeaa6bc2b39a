"""Computes C by a convolution, an operator that a list of matrix products may not name.

expected: failed or cheated or error
says: torch|operator|multiply|convolution
"""

import torch
import torch_gemm
from torch_gemm import compute


def multiply(left, right):
    return torch.nn.functional.conv1d(left.float()[:, :, None], right.float()[:, :, None])[:, :, 0].double()


torch_gemm.multiply = multiply
custom_kernel = compute
