"""Reads the inputs' storage, and fills C through the storage of C.

expected: failed or cheated or error or crashed
says: read|host|storage|SIGSEGV
"""

import numpy as np
import torch
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        flat = torch.from_numpy(np.ascontiguousarray(result)).view(torch.uint8).flatten()
        storage, start = c.untyped_storage(), c.storage_offset() * 2
        for index, value in enumerate(flat.tolist()):
            storage[start + index] = value
    return outputs(data)
