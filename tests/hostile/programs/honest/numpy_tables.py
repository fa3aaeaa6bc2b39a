"""Computes tables with numpy on the host and uploads them; C does not depend on them."""

import numpy as np
import torch
from honest_gemm import compute


def custom_kernel(data):
    offsets = np.cumsum([0, *(m * n for m, n, _, _ in data[3])])
    table = torch.from_numpy(offsets).cuda()
    assert table.shape[0] == len(data[3]) + 1
    return compute(data)
