"""Prints 300 MB to each of its streams, in lines and in one line.

expected: contained
"""

import sys

from honest_gemm import compute

for stream in (sys.stdout, sys.stderr):
    for _ in range(4000):
        stream.write("x" * 65536)
    stream.write("\n")

custom_kernel = compute
