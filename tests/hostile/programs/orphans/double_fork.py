"""Forks twice, begins a session of its own, and becomes a program that sleeps.

expected: contained
"""

import os

import bait
from honest_gemm import compute

if (child := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", [f"sleep-{bait.MARK}", "600"])
    os._exit(0)
os.waitpid(child, 0)

custom_kernel = compute
