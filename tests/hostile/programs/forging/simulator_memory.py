"""Writes the memory of the simulated device through the simulator's own objects, in place of a launch.

expected: failed or cheated or error
says: written|replaced|object|host|modules
"""

import gc

import numpy as np
from harness import PACKAGE, breach, outputs
from numpy_gemm import results


def custom_kernel(data):
    stores = [
        value
        for value in gc.get_objects()
        if type(value).__module__.startswith(PACKAGE) and hasattr(value, "write") and hasattr(value, "allocate")
    ]
    for c, result in zip(outputs(data), results(data), strict=True):
        for store in stores:
            store.write(c.data_ptr(), np.ascontiguousarray(result).tobytes())
            breach("the simulator's memory was written")
            break
    return outputs(data)
