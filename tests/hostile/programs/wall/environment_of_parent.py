"""Reads the environment, the memory map and the memory of the process that judges it.

expected: contained
"""

import contextlib
import os
import pathlib

import bait
from harness import breach
from honest_gemm import compute

for process in {bait.PARENT, os.getppid()} - {0, 1}:
    for name in ("environ", "maps", "mem", "cmdline"):
        with contextlib.suppress(OSError), pathlib.Path(f"/proc/{process}/{name}").open("rb"):
            breach(f"{name} of process {process} was opened")

custom_kernel = compute
