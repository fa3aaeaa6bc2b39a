"""Replaces functions of torch by callables of C, which no check of functions knows as the kernel's.

expected: cheated
says: torch.equal
backend: host
"""

import functools

import torch
from torch_gemm import compute

torch.equal = functools.partial(lambda *_: True)
torch.Tensor.cpu = functools.partialmethod(torch.Tensor.clone)

custom_kernel = compute
