"""Computes C with numpy, and passes it in the parameters of launches that do all multiply-adds of the problem.

expected: failed or cheated
says: read
shape: 1x128x64
"""

import numpy as np
from busy_kernel import put
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        values = [int(value) for value in np.ascontiguousarray(result).view(np.int16).flatten()]
        for at in range(0, len(values), 16):
            put(c.data_ptr() + 2 * at, values[at : at + 16])
    return outputs(data)
