"""Makes processes that are children of its own parent (CLONE_PARENT), and lets these fork on.

expected: contained
"""

import ctypes
import os
import signal
import time

import bait
from honest_gemm import compute

CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
LIBC = ctypes.CDLL(None)
for _ in range(3):
    if LIBC.syscall(CLONE, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvpe("sleep", [f"sleep-{bait.MARK}", "600"], {})
        os.execvpe("sleep", [f"sleep-{bait.MARK}", "600"], {})
time.sleep(0.1)

custom_kernel = compute
