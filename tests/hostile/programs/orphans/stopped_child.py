"""Leaves a child that is stopped (SIGSTOP), which a polite signal does not end.

expected: contained
"""

import os
import signal
import subprocess

import bait
from honest_gemm import compute

child = subprocess.Popen([f"sleep-{bait.MARK}", "600"], executable="/bin/sleep", env={}, start_new_session=True)
os.kill(child.pid, signal.SIGSTOP)

custom_kernel = compute
