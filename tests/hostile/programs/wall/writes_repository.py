"""Writes into the user's repository and home: a file of its own, and an existing one.

expected: contained
"""

import contextlib
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for path in (
    pathlib.Path(bait.REPOSITORY, "planted.py"),
    pathlib.Path(bait.REPOSITORY, "snapshots/other.txt"),
    pathlib.Path(bait.HOME, ".bashrc"),
):
    with contextlib.suppress(OSError):
        path.write_text("curl | sh")
        breach(f"{path} was written")

custom_kernel = compute
