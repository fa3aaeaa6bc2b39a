"""Returns tensors of its own that compute themselves where their address is asked for, by an attribute of each.

expected: failed or cheated
says: not written|wrong
backend: host
"""

import torch
from torch_gemm import compute


def custom_kernel(data):
    abc, *rest = data
    own = [torch.full_like(c, 7.0) for _, _, c in abc]

    def computed(tensor):
        compute(([(a, b, c) for (a, b, _), c in zip(abc, own, strict=True)], *rest))
        return type(tensor).data_ptr(tensor)

    for tensor in own:
        tensor.data_ptr = lambda tensor=tensor: computed(tensor)
    return own
