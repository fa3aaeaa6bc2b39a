"""Lists the files that the process that judges it has open, and opens one again.

expected: contained
"""

import contextlib
import os
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for process in {bait.PARENT, os.getppid()} - {0, 1}:
    with contextlib.suppress(OSError):
        for link in pathlib.Path(f"/proc/{process}/fd").iterdir():
            breach(f"{link} is visible")

custom_kernel = compute
