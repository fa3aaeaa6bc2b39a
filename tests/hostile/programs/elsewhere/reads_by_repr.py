"""Reads the inputs as text, by ``repr``, and fills C from the host.

expected: failed or cheated or error
says: read|host|copy|repr
"""

import re

import numpy as np
import torch
from numpy_gemm import outputs, results

torch.set_printoptions(threshold=10**9, linewidth=10**6)


def by_text(tensor):
    text = repr(tensor.view(torch.uint8)).partition("dtype")[0].partition("device")[0]
    return np.array([int(word) for word in re.findall(r"\d+", text)], dtype=np.uint8).reshape(tensor.shape)


def custom_kernel(data):
    for c, result in zip(outputs(data), results(data, by_text), strict=True):
        c[:, :, 0].copy_(torch.from_numpy(result))
    return outputs(data)
