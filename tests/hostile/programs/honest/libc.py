"""Calls functions of the C library, with a callback."""

import ctypes

from honest_gemm import compute

LIBC = ctypes.CDLL(None)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
values = (ctypes.c_int * 4)(3, 1, 2, 0)
LIBC.qsort(values, 4, ctypes.sizeof(ctypes.c_int), COMPARE(lambda a, b: a[0] - b[0]))
assert list(values) == [0, 1, 2, 3]

custom_kernel = compute
