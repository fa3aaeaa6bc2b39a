"""Overwrites a slot of a harness's class in memory: ``tp_call`` of one class becomes that of another.

expected: cheated or crashed or error
says: slot|memory|ended|ctypes
backend: host
"""

import ctypes

from harness import module
from torch_gemm import compute

SLOT = 16 * 8
"""Offset of ``tp_call`` in ``PyTypeObject`` on 64-bit machines: 24 bytes of head, then 13 pointers."""


def custom_kernel(data):
    for name in ("device.worker.events", "device.worker.buffers"):
        for value in list(vars(module(name)).values()):
            if isinstance(value, type) and value.__module__.endswith(name):
                ctypes.c_void_p.from_address(id(value) + SLOT).value = 0
    return compute(data)
