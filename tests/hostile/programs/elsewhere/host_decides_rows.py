"""Launches the GEMM on zeros, and then corrects every output by a sum with host-made values on the device.

expected: failed or cheated
says: read|host|operator
"""

import torch
from honest_gemm import compute
from numpy_gemm import outputs, results


def custom_kernel(data):
    made = results(data)
    compute(data)
    for c, result in zip(outputs(data), made, strict=True):
        c.zero_()
        c[:, :, 0].add_(torch.from_numpy(result).cuda())
    return outputs(data)
