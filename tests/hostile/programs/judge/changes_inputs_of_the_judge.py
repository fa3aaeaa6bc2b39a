"""Changes A to zeros, so that a C of zeros would be right for the inputs that are on the device.

expected: failed or cheated
says: inputs|changed|wrong|written
"""

import torch
from honest_gemm import compute


def custom_kernel(data):
    for a, _, _ in data[0]:
        a.view(torch.uint8).zero_()
    return compute(data)
