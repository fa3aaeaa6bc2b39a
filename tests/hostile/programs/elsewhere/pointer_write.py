"""Writes C through its device address with ctypes, which only works where device memory is host memory.

expected: failed or cheated or crashed
says: SIGSEGV|address|not written|never|host
"""

import ctypes

import numpy as np
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        values = np.ascontiguousarray(result)
        ctypes.memmove(c.data_ptr(), values.ctypes.data, values.nbytes)
    return outputs(data)
