"""Has a table of all fp16 values on the device, and copies 2 bytes for each output from an address that the host chose.

expected: failed or cheated
says: read|host|multiply
shape: 1x128x64
"""

import numpy as np
import torch
from numpy_gemm import outputs, results


def custom_kernel(data):
    table = torch.arange(-32768, 32768, dtype=torch.int32, device="cuda").to(torch.int16).view(torch.float16)
    for c, result in zip(outputs(data), results(data), strict=True):
        for index, value in enumerate(np.ascontiguousarray(result).view(np.int16).flatten()):
            c.view(-1)[index : index + 1].copy_(table[int(value) + 32768 : int(value) + 32769])
    return outputs(data)
