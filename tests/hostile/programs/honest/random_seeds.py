"""Seeds generators of Python, numpy and torch, and draws from them."""

import random

import numpy as np
import torch
from honest_gemm import compute

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)


def custom_kernel(data):
    noise = torch.rand(16, device="cuda"), np.random.rand(4), random.random()
    assert len(noise) == 3
    return compute(data)
