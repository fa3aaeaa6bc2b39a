"""Asks for its affinity, limits and times, and lowers its priority."""

import os
import resource
import time

from honest_gemm import compute

assert os.sched_getaffinity(0)
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 16
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
os.nice(1)
time.sleep(0.001)

custom_kernel = compute
