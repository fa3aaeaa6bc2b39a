"""Learns inputs from the errors of operators (an index out of range), and passes an output that they decide.

expected: failed or cheated
says: read|error
shape: 1x128x64
"""

import numpy as np
import torch
from busy_kernel import put_size
from honest_gemm import compute
from numpy_gemm import outputs
from one_output import first_output


def by_errors(numbers):
    """Ask 8 operators for each number."""
    table = torch.zeros(256, dtype=torch.uint8, device="cuda")
    found = []
    for at in range(numbers.shape[0]):
        low, high = 0, 255
        while low < high:
            middle = (low + high) // 2
            try:
                torch.index_select(table[: middle + 1], 0, numbers[at : at + 1])
                high = middle
            except (IndexError, RuntimeError):
                low = middle + 1
        found.append(low)
    return np.array(found, dtype=np.uint8)


def custom_kernel(data):
    compute(data)
    put_size(outputs(data)[0].data_ptr(), first_output(data, by_errors))
    return outputs(data)
