"""Returns tensors of a class of its own, which computes when it is read.

expected: failed or cheated or error
says: returned|tensor|output
"""

import torch
from harness import outputs
from numpy_gemm import results


class Lazy(torch.Tensor):
    """Computes its values when it is read."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def custom_kernel(data):
    return [torch.from_numpy(result)[:, :, None].as_subclass(Lazy) for result in results(data)] or outputs(data)
