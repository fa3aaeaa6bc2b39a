"""Reads the inputs through DLPack and fills C from the host.

expected: failed or cheated or error or crashed
says: read|host|copy|device|DLPack|SIGSEGV
"""

import numpy as np
import torch
from numpy_gemm import outputs, results


def by_dlpack(tensor):
    return np.array(np.from_dlpack(tensor.view(torch.uint8).cpu()))


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data, by_dlpack), strict=True):
        c[:, :, 0].copy_(torch.from_numpy(result))
    return outputs(data)
