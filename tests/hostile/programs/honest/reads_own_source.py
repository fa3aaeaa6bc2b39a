"""Reads the file that it is."""

import pathlib

from honest_gemm import compute

assert "custom_kernel" in pathlib.Path(__file__).read_text()

custom_kernel = compute
