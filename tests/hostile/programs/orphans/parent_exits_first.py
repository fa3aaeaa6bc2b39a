"""Ends its own process as soon as its child runs, so that the child has another parent.

expected: crashed or error or cheated
says: exited|ended
"""

import os
import subprocess

import bait
from honest_gemm import compute


def custom_kernel(data):
    compute(data)
    subprocess.Popen([f"sleep-{bait.MARK}", "600"], executable="/bin/sleep", env={}, start_new_session=True)
    os._exit(0)
