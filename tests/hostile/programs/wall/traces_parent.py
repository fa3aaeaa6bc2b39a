"""Attaches to the process that judges it (``PTRACE_SEIZE`` stops nothing), and reads its memory.

expected: contained
"""

import ctypes

import bait
from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None)
if LIBC.ptrace(0x4206, bait.PARENT, None, None) == 0:
    LIBC.ptrace(17, bait.PARENT, None, None)
    breach("ptrace")


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


buffer = ctypes.create_string_buffer(8)
local, remote = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
done = LIBC.process_vm_readv(bait.PARENT, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
if done > 0:
    breach("process_vm_readv")

custom_kernel = compute
