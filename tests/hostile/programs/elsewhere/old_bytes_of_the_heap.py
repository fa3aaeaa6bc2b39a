"""Requests uninitialised host memory of the process that holds the inputs.

expected: contained
"""

from honest_gemm import compute
from wire import operator


def custom_kernel(data):
    compute(data)
    arguments = {"dtype": {"dtype": "uint8"}, "device": {"device": "cpu"}}
    for size in (64, 512, 4096, 65536):
        _, blobs = operator("empty", "memory_format", [size], **arguments)
        if any(map(any, blobs)):
            print("BREACH: memory of the machine's process was read")
    return [c for _, _, c in data[0]]
