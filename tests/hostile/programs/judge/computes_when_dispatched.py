"""Leaves a mode active that sees each operator of its caller.

expected: failed
says: mode of torch
"""

from honest_gemm import compute
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODE = Watching()
MODE.__enter__()
custom_kernel = compute
