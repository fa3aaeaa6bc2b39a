"""Reads what the operating system says of the machine."""

import os
import platform

from honest_gemm import compute

assert open("/proc/cpuinfo").read(10)
assert os.cpu_count()
assert platform.machine()
assert os.getpid() > 0

custom_kernel = compute
