"""Overwrites a slot of a harness's class in memory: ``tp_repr`` becomes that of another class.

expected: cheated or crashed or error
says: replaced
backend: host
"""

import ctypes

from harness import module
from torch_gemm import compute

SLOT = 11 * 8
"""Offset of ``tp_repr`` in ``PyTypeObject`` on 64-bit machines: 24 bytes of head, then 8 fields."""


def custom_kernel(data):
    for name in ("isolation.event_sender", "device.worker.buffers"):
        for value in list(vars(module(name)).values()):
            if isinstance(value, type) and value.__module__.endswith(name):
                ctypes.c_void_p.from_address(id(value) + SLOT).value = ctypes.c_void_p.from_address(
                    id(int) + SLOT
                ).value
    return compute(data)
