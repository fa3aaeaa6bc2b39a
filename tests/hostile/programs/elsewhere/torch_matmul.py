"""Computes C with torch's operators on the device: no kernel of the author's own.

expected: failed or cheated
says: torch|operator|multiply
"""

from torch_gemm import compute

custom_kernel = compute
