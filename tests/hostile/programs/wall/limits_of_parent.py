"""Limits the time and the memory of the processes above it, and lowers their priority.

expected: contained
"""

import contextlib
import os
import resource

import bait
from harness import breach
from honest_gemm import compute

for pid in (bait.PARENT, os.getppid(), 1):
    for what, value in ((resource.RLIMIT_NOFILE, (3, 3)), (resource.RLIMIT_CPU, (1, 1))):
        with contextlib.suppress(OSError, ValueError):
            if pid != os.getpid():
                resource.prlimit(pid, what, value)
                if pid == bait.PARENT and os.path.exists(f"/proc/{pid}"):
                    breach(f"the limits of process {pid} were changed")
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, {0})
        if pid == bait.PARENT:
            breach(f"process {pid} was moved")

custom_kernel = compute
