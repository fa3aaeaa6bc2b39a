"""Overwrites a text of the harness in memory: the status that means wrong becomes the one that means right.

expected: cheated or crashed or error
says: replaced|memory|ended
backend: host
"""

import ctypes
import sys

from torch_gemm import compute

HEAD = sys.getsizeof("") - 1


def custom_kernel(data):
    for text in ("cheated", "crashed"):
        ctypes.memmove(id(sys.intern(text)) + HEAD, b"passed\0", 7)
    return compute(data)
