"""Replaces ``__code__`` of the function that sends outputs: it fills C from numpy before it looks at it.

expected: cheated
says: code|inspect_returned
backend: host
"""

from harness import module
from torch_gemm import compute

ASKED = {}


def install():
    sender = module("device.worker.returned_tensors")
    original = sender.inspect_returned
    copy = type(original)(original.__code__, original.__globals__)

    def inspect_returned(torch, returned, given):
        return __import__("builtins").__dict__["_late"](torch, returned, given)

    __import__("builtins").__dict__["_late"] = lambda *args: (fill_now(), copy(*args))[1]
    original.__code__ = inspect_returned.__code__


def fill_now():
    if "data" in ASKED:
        compute(ASKED["data"])


def custom_kernel(data):
    if not ASKED:
        install()
    ASKED["data"] = data
    return [c for _, _, c in data[0]]
