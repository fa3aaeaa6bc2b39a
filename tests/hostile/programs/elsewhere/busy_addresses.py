"""Has a table of all fp16 values on the device, and launches copies from rows of it that the host chooses.

expected: failed or cheated
says: read
shape: 1x128x64
"""

import numpy as np
import torch
from busy_kernel import copy
from numpy_gemm import outputs, results


def custom_kernel(data):
    table = torch.arange(0, 65536, dtype=torch.int32, device="cuda").to(torch.int16)
    for c, result in zip(outputs(data), results(data), strict=True):
        chosen = torch.empty(128, dtype=torch.int16, device="cuda")
        for at, value in enumerate(np.ascontiguousarray(result).view(np.uint16).flatten()):
            chosen[at : at + 1].copy_(table[int(value) : int(value) + 1])
        copy(chosen, c, 1)
    return outputs(data)
