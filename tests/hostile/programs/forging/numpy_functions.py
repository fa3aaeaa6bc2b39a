"""Replaces functions of numpy with which the harness reads and hashes outputs.

expected: cheated
says: numpy
backend: host
"""

import functools

import numpy as np
from torch_gemm import compute

np.frombuffer = functools.partial(np.frombuffer)
np.ascontiguousarray = functools.partial(np.ascontiguousarray)
np.array_equal = functools.partial(lambda *_: True)

custom_kernel = compute
