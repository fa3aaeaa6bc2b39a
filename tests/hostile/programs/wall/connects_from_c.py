"""Connects by calls of libc, in a child process that was forked.

expected: contained
"""

import ctypes
import os
import struct

import bait
from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
if (child := os.fork()) == 0:
    descriptor = LIBC.socket(2, 1, 0)
    address = struct.pack("=H", 2) + struct.pack(">H4B8x", bait.PORT, 127, 0, 0, 1)
    if descriptor >= 0 and LIBC.connect(descriptor, address, 16) == 0:
        breach("a child connected")
    os._exit(0)
os.waitpid(child, 0)

custom_kernel = compute
