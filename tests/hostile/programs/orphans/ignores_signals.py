"""Leaves a process that ignores every signal that can be ignored, in a process group of its own.

expected: contained
"""

import subprocess

import bait
from honest_gemm import compute

SCRIPT = "trap '' TERM HUP INT QUIT PIPE; while :; do sleep 1; done"
subprocess.Popen(["/bin/sh", "-c", SCRIPT, f"loop-{bait.MARK}"], process_group=0)

custom_kernel = compute
