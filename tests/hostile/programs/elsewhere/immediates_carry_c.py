"""Computes C with numpy and compiles it into the code of a kernel.

expected: failed or cheated
says: read|host|multiply|module|compile
shape: 1x128x64
"""

import numpy as np
from copy_kernel import constant
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        constant(c, [int(value) for value in np.ascontiguousarray(result).view(np.int32).flatten()])
    return outputs(data)
