"""Replaces builtins by callables that are no functions of Python: ``zip`` and ``len`` show no groups.

expected: cheated
says: builtins|sorted
backend: host
"""

import builtins
import functools

from torch_gemm import compute


def custom_kernel(data):
    returned = compute(data)
    builtins.sorted = functools.partial(builtins.sorted)
    builtins.enumerate = functools.partial(builtins.enumerate)
    return returned
