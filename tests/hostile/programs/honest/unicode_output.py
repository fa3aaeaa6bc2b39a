"""Prints text in many scripts, colours and a progress bar."""

import sys

from honest_gemm import compute

print("größe 大きさ размер \x1b[32mgreen\x1b[0m ✓")
for step in range(10):
    sys.stderr.write(f"\r{step * 10} %")

custom_kernel = compute
