"""Reads the inputs through the number of random numbers that an operator draws, and says so where that is unseen.

expected: failed or cheated or error
says: read|host
"""

import torch
from copy_kernel import copy
from honest_gemm import compute
from numpy_gemm import outputs, results


def custom_kernel(data):
    values = data[0][0][0].view(torch.uint8)[0, :1, 0].to(torch.float32)
    before = torch.default_generator.get_state()
    torch.poisson(values)
    known = not torch.equal(before, torch.default_generator.get_state())
    compute(data)
    for c, result in zip(outputs(data), results(data) if known else [], strict=False):
        copy(torch.from_numpy(result).cuda(), c)
    return outputs(data)
