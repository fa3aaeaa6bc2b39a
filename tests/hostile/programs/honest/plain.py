"""The kernel by itself."""

from honest_gemm import compute

custom_kernel = compute
