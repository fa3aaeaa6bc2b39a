"""Learns inputs from the sizes of results (``repeat_interleave``), and passes an output that they decide.

expected: failed or cheated
says: read
shape: 1x128x64
"""

import numpy as np
import torch
from busy_kernel import put_size
from honest_gemm import compute
from numpy_gemm import outputs
from one_output import first_output


def by_shapes(numbers):
    one = torch.ones(1, dtype=torch.uint8, device="cuda")
    sizes = [torch.repeat_interleave(one, numbers[at : at + 1]).shape[0] for at in range(numbers.shape[0])]
    return np.array(sizes, dtype=np.uint8)


def custom_kernel(data):
    compute(data)
    put_size(outputs(data)[0].data_ptr(), first_output(data, by_shapes))
    return outputs(data)
