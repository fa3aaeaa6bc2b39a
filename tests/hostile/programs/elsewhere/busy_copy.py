"""Computes C with numpy, and copies it with a kernel that does all multiply-adds of the problem on other numbers.

expected: failed or cheated
says: read
"""

import torch
from busy_kernel import copy
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        copy(torch.from_numpy(result).cuda(), c, result.shape[0])
    return outputs(data)
