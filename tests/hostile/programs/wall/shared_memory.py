"""Leaves a file in ``/dev/shm`` and in ``/tmp`` for a later kernel.

expected: contained
"""

import contextlib
import pathlib

import bait
from honest_gemm import compute

for folder in ("/dev/shm", "/tmp", "/var/tmp"):
    with contextlib.suppress(OSError):
        pathlib.Path(folder, bait.MARK).write_text("x")

custom_kernel = compute
