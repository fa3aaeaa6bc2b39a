"""Leaves folders inside each other, deeper than any recursion and any path.

expected: contained
"""

import os

from honest_gemm import compute

for where in ("/tmp", os.path.expanduser("~"), ".."):
    try:
        os.chdir(where)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
    except OSError:
        continue
os.chdir("/")

custom_kernel = compute
