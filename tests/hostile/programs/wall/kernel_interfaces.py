"""Tries interfaces of the operating system that no kernel of a GPU needs: bpf, perf, io_uring, userfaultfd.

expected: contained
"""

import ctypes

from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
AREA = ctypes.create_string_buffer(512)
for name, number, arguments in (
    ("bpf", 321, (0, AREA, 72)),
    ("perf_event_open", 298, (AREA, 0, -1, -1, 0)),
    ("io_uring_setup", 425, (1, AREA)),
    ("userfaultfd", 323, (0,)),
):
    if LIBC.syscall(number, *arguments) >= 0:
        breach(name)

custom_kernel = compute
