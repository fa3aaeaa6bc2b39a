"""Mounts a file system over its folder, with and without a namespace of its own.

expected: contained
"""

import ctypes
import os

from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
os.makedirs("over", exist_ok=True)
if LIBC.mount(b"none", os.path.abspath("over").encode(), b"tmpfs", 0, None) == 0:
    LIBC.umount(os.path.abspath("over").encode())
    breach("mount")
if (child := os.fork()) == 0:
    if LIBC.unshare(0x10000000 | 0x20000) == 0:
        breach("unshare")
    os._exit(0)
os.waitpid(child, 0)

custom_kernel = compute
