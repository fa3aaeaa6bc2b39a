"""Leaves a process that keeps the worker's output and result open, so that a reader waits for it.

expected: contained
"""

import subprocess

import bait
from honest_gemm import compute

subprocess.Popen(
    [f"sleep-{bait.MARK}", "600"], executable="/bin/sleep", env={}, start_new_session=True, close_fds=False
)

custom_kernel = compute
