"""The first output alone, from 40 bytes of the inputs, for ways to learn inputs that are too slow for all of them."""

import numpy as np
import torch
from numpy_gemm import elements, scale_factors


def first_output(data, read):
    """Return the bits of C[0, 0]; ``read`` returns the numbers below 256 of a tensor of the device."""
    (a, b, _), (sfa, sfb), (_, _, k, _) = data[0][0], data[2][0], data[3][0]
    values = []
    for operand, scales in ((a, sfa), (b, sfb)):
        row = read(operand.view(torch.uint8)[0, :, 0].to(torch.int64))
        codes = read(scales.view(torch.uint8)[0, 0, 0, :, :, 0].t().flatten().to(torch.int64))
        whole = np.zeros((32, 4, 1, 4, k // 64, 1), np.uint8)
        whole[0, 0, 0, :, :, 0] = codes.reshape(k // 64, 4).T
        values.append(elements(row[None, :, None]) * scale_factors(whole, 1, k))
    return int((values[0] @ values[1].T).astype(np.float16).view(np.uint16)[0, 0])
