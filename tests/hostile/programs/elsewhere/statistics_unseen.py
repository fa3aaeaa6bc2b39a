"""Copies the inputs by an operator that writes an operand undeclared, so that reading the copy reads no input.

expected: failed or cheated or error
says: has no stand-in|read|host
"""

import torch
from copy_kernel import copy
from honest_gemm import compute
from numpy_gemm import outputs, results


def unseen(tensor):
    values = tensor.view(torch.uint8).to(torch.float32).reshape(1, -1)
    mean, variance = (torch.zeros(values.shape[1], device="cuda") for _ in range(2))
    torch.ops.aten.native_batch_norm(torch.cat([values, values]), None, None, mean, variance, True, 1.0, 1e-5)
    return mean.cpu().to(torch.uint8).reshape(tensor.shape).numpy()


def custom_kernel(data):
    made = results(data, read=unseen)
    compute(data)
    for c, result in zip(outputs(data), made, strict=True):
        copy(torch.from_numpy(result).cuda(), c)
    return outputs(data)
