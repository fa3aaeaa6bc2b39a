"""Makes a child the reaper of its descendants, so that orphans never come to the harness.

expected: contained
"""

import ctypes
import os
import time

import bait
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
if os.fork() == 0:
    os.setsid()
    LIBC.prctl(36, 1, 0, 0, 0)
    if os.fork() == 0:
        os.execvp("sleep", [f"sleep-{bait.MARK}", "600"])
    os.execvpe("sleep", [f"sleep-{bait.MARK}", "600"], {})
time.sleep(0.05)

custom_kernel = compute
