"""Opens every folder above by descriptors (``openat`` with ``..``) from a place that it may read.

expected: contained
"""

import os

import bait
from harness import breach
from honest_gemm import compute

try:
    at = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(20):
        at = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=at)
    with os.fdopen(os.open(f".{bait.HOME}/.netrc", os.O_RDONLY, dir_fd=at)) as file:
        if bait.SECRET in file.read():
            breach(".netrc was read through ..")
except OSError as error:
    print("refused:", error)

custom_kernel = compute
