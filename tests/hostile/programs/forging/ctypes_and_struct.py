"""Replaces functions of ctypes and struct by wrappers that are classes of the kernel.

expected: cheated
says: ctypes|struct
backend: host
"""

import ctypes
import struct

from torch_gemm import compute


class Wrapper:
    """Calls what it replaces."""

    def __init__(self, real):
        self.real = real

    def __call__(self, *args):
        return self.real(*args)


ctypes.string_at, ctypes.memmove = Wrapper(ctypes.string_at), Wrapper(ctypes.memmove)
struct.pack, struct.unpack = Wrapper(struct.pack), Wrapper(struct.unpack)

custom_kernel = compute
