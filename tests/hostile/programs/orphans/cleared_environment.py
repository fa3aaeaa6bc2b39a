"""Leaves a process in its own session whose environment is empty.

expected: contained
"""

import subprocess

import bait
from honest_gemm import compute

subprocess.Popen([f"sleep-{bait.MARK}", "600"], executable="/bin/sleep", env={}, start_new_session=True)

custom_kernel = compute
