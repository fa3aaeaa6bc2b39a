"""Launches a kernel on A of zeros; the host writes C's values as A's scale factors of a product with the identity.

expected: failed or cheated
says: read|host
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs, results


def custom_kernel(data):
    made = results(data)
    abc, plain, reordered, sizes = data
    compute(([(torch.zeros_like(a.view(torch.uint8)), b, c) for a, b, c in abc], plain, reordered, sizes))
    for c, result in zip(outputs(data), made, strict=True):
        c[:, :, 0] = torch.from_numpy(result).cuda()
    return outputs(data)
