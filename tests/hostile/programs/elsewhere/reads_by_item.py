"""Reads every byte of the inputs with ``tolist``, and fills C element by element with ``fill_``.

expected: failed or cheated or error
says: read|host|fill|scalar
shape: 1x128x64
"""

import numpy as np
import torch
from numpy_gemm import outputs, results


def by_list(tensor):
    return np.array(tensor.view(torch.uint8).tolist(), dtype=np.uint8)


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data, by_list), strict=True):
        for row, values in enumerate(result):
            for column, value in enumerate(values):
                c[row, column, 0].fill_(float(value))
    return outputs(data)
