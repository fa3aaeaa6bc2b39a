"""Logs from its call, and makes a function of torch's JIT, which look at frames for themselves."""

import logging

import torch
from honest_gemm import compute


def plain(sizes: torch.Tensor) -> torch.Tensor:
    return sizes + 1


def custom_kernel(data):
    logging.getLogger(__name__).warning("called with %d groups", len(data[3]))
    assert int(torch.jit.script(plain)(torch.zeros(1))) == 1
    return compute(data)
