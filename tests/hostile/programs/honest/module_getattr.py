"""Finds its own names in a function of the module."""

from honest_gemm import compute


def __getattr__(name):
    if name == "custom_kernel":
        return compute
    raise AttributeError(name)
