"""Returns tensors of its own before it computes them: a mode of torch does so when an attribute of one is read.

expected: failed
says: mode of torch
"""

import torch
from honest_gemm import compute
from torch.overrides import TorchFunctionMode

LATER = []


class Lazy(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if LATER:
            compute(LATER.pop())
        return func(*args, **(kwargs or {}))


MODE = Lazy()
MODE.__enter__()


def custom_kernel(data):
    abc, *rest = data
    own = [torch.empty_like(c) for _, _, c in abc]
    LATER.append(([(a, b, c) for (a, b, _), c in zip(abc, own, strict=True)], *rest))
    return own
