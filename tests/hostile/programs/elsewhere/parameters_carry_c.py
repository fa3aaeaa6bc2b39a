"""Computes C with numpy and passes it to a kernel in its parameters, 16 words a launch.

expected: failed or cheated
says: read|host|multiply|parameter
shape: 1x128x64
"""

import numpy as np
from copy_kernel import put
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        words = [int(value) for value in np.ascontiguousarray(result).view(np.int32).flatten()]
        for at in range(0, len(words), 16):
            put(c, at, words[at : at + 16])
    return outputs(data)
