"""Makes tensors on a default device, within a mode of its own that ends, and without gradients."""

import torch
from honest_gemm import compute
from torch.overrides import TorchFunctionMode

torch.set_default_device("cuda")


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counting.calls += 1
        return func(*args, **(kwargs or {}))


def custom_kernel(data):
    with Counting(), torch.inference_mode():
        assert torch.zeros(4).device.type == "cuda"
    return compute(data)
