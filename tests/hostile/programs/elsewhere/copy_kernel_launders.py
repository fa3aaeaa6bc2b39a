"""Computes C with numpy, uploads it to a buffer of its own, and launches a kernel that copies the buffer to C.

expected: failed or cheated
says: read|host|multiply
"""

import torch
from copy_kernel import copy
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        copy(torch.from_numpy(result).cuda(), c)
    return outputs(data)
