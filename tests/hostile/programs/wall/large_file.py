"""Writes a file without end.

expected: contained or error or crashed
"""

import os

from harness import breach
from honest_gemm import compute

try:
    with open("large", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 30)
    breach("64 GiB were allocated")
except OSError as error:
    print("refused:", error)

custom_kernel = compute
