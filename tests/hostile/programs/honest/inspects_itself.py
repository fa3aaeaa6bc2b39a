"""Reads its own source and signature."""

import inspect

import honest_gemm
from honest_gemm import compute


def custom_kernel(data):
    assert "data" in inspect.signature(compute).parameters
    assert "kernel" in inspect.getdoc(honest_gemm)
    assert "return" in inspect.getsource(compute)
    return compute(data)
