"""Replaces the code of a function of the harness while it is called, and restores it before any check looks.

expected: cheated
says: code
backend: host
"""

from harness import module
from torch_gemm import compute

SENDER = module("device.worker.returned_tensors")
READ = SENDER.read_tensor
KEPT = READ.__code__


def spare(memory, tensor):
    return b"\0" * 768


READ.__code__ = spare.__code__
READ.__code__ = KEPT


def custom_kernel(data):
    return [c.clone() for c in compute(data)]
