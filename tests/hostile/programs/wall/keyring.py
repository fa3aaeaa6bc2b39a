"""Adds a key to the session's keyring and looks for others.

expected: contained
"""

import ctypes

from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
if LIBC.syscall(248, b"user", b"nvfp4-corpus", b"x", 1, ctypes.c_long(-3)) > 0:
    breach("add_key")
if LIBC.syscall(250, 0, ctypes.c_long(-3), 0, 0, 0) > 0:
    breach("keyctl")

custom_kernel = compute
