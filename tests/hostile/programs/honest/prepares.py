"""Compiles ahead in ``compile_kernel``, as the contract allows."""

from honest_gemm import compiled, compute


def compile_kernel(sizes):
    assert sizes
    return compiled()


custom_kernel = compute
