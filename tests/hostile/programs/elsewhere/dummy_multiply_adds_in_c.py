"""Launches the GEMM into C itself, so that its multiply-adds count, and overwrites C by a copy kernel.

expected: failed or cheated
says: read|host|multiply
"""

import torch
from copy_kernel import copy
from honest_gemm import compute
from numpy_gemm import outputs, results


def custom_kernel(data):
    made = results(data)
    compute(data)
    for c, result in zip(outputs(data), made, strict=True):
        copy(torch.from_numpy(result).cuda(), c)
    return outputs(data)
