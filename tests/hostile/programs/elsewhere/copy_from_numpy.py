"""Computes C with numpy and copies it to the device; no kernel is launched.

expected: failed or cheated
says: copy|read of inputs|host
"""

from numpy_gemm import fill

custom_kernel = fill
