"""The same with ``tgkill`` and ``pidfd_send_signal``, which a filter of ``kill`` alone forgets.

expected: contained
"""

import ctypes

import bait
from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
if LIBC.syscall(234, bait.PARENT, bait.PARENT, 0) == 0:
    breach("tgkill")
if (descriptor := LIBC.syscall(434, bait.PARENT, 0)) >= 0 and LIBC.syscall(424, descriptor, 0, None, 0) == 0:
    breach("pidfd_send_signal")

custom_kernel = compute
