"""Launches a kernel whose file, function and printed text contain commands of terminals.

expected: contained
"""

from honest_gemm import compute

print("\x1b[31m::error::owned\u202e")
print("::add-mask::owned")

custom_kernel = compute
