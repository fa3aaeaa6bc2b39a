"""Computes C with numpy and writes it with the driver's copy from the host.

expected: failed or cheated
says: copy|host
"""

import numpy as np
from cuda.bindings import driver
from numpy_gemm import outputs, results


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data), strict=True):
        values = np.ascontiguousarray(result)
        driver.cuMemcpyHtoD(c.data_ptr(), values.ctypes.data, values.nbytes)
    return outputs(data)
