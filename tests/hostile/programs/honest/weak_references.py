"""Keeps workspaces by weak references and finalisers."""

import weakref

import torch
from honest_gemm import compute

SPACES = weakref.WeakValueDictionary()


def custom_kernel(data):
    space = torch.zeros(1024, dtype=torch.int32, device="cuda")
    SPACES["last"] = space
    weakref.finalize(space, print, "freed")
    return compute(data)
