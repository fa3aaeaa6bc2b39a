"""Becomes another user, or takes back capabilities, by programs that are set-user-ID.

expected: contained
"""

import ctypes
import os

from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
if LIBC.prctl(39, 0, 0, 0, 0) != 1:
    breach("no_new_privs is not set")
for line in open("/proc/self/status"):
    if line.startswith("CapEff:") and int(line.split()[1], 16) and os.path.exists("/proc/1/root/proc/1"):
        print("capabilities in its own namespace:", line.strip())

custom_kernel = compute
