"""Reads variables, and sets some of its own."""

import os

from honest_gemm import compute

os.environ["MY_KERNEL_TILE"] = "128"
assert os.environ.get("PATH")
assert int(os.getenv("MY_KERNEL_TILE")) == 128
assert "NO_SUCH_VARIABLE" not in os.environ

custom_kernel = compute
