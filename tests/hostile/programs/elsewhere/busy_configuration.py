"""Computes C, and replaces 8 outputs by what the host passes as bytes of shared memory, so that the rest is a kernel's.

expected: failed or cheated
says: read
shape: 1x128x64
"""

import numpy as np
from busy_kernel import put_size
from honest_gemm import compute
from numpy_gemm import outputs, results


def custom_kernel(data):
    compute(data)
    for c, result in zip(outputs(data), results(data), strict=True):
        for at, value in enumerate(np.ascontiguousarray(result).view(np.uint16).flatten()[:8]):
            put_size(c.data_ptr() + 2 * at, int(value))
    return outputs(data)
