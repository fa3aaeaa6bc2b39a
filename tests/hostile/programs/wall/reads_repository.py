"""Reads the user's repository: a secret, and the snapshots of another kernel.

expected: contained
"""

import contextlib
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for name in ("secret.py", "snapshots/other.txt"):
    with contextlib.suppress(OSError):
        if bait.SECRET in pathlib.Path(bait.REPOSITORY, name).read_text():
            breach(f"{name} was read")

custom_kernel = compute
