"""Leaves a process that claims to belong to another run: every variable of the harness has another value.

expected: contained
"""

import os
import subprocess

import bait
from honest_gemm import compute

forged = {name: "f" * len(value) for name, value in os.environ.items() if name.startswith(("NVFP4", "PYTEST"))}
forged |= {"NVFP4_RUN_TOKEN": "0", "PATH": "/bin"}
subprocess.Popen([f"sleep-{bait.MARK}", "600"], executable="/bin/sleep", env=forged, start_new_session=True)

custom_kernel = compute
