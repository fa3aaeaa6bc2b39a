"""Test NVFP4 grouped-GEMM kernels for NVIDIA Blackwell on a machine without a GPU."""

__version__ = "0.1.0"
