"""Forks a child that forks and ends, again and again, so that a walk over the processes always comes too late.

expected: contained
"""

import os
import time

import bait
from honest_gemm import compute

if (child := os.fork()) == 0:
    os.setsid()
    for _ in range(200):
        if os.fork():
            os._exit(0)
        time.sleep(0.01)
    os.execvp("sleep", [f"sleep-{bait.MARK}", "600"])
os.waitpid(child, 0)

custom_kernel = compute
