"""Reads the user's files in a child process, which is not this process.

expected: contained
"""

import subprocess

import bait
from harness import breach
from honest_gemm import compute

done = subprocess.run(["cat", f"{bait.HOME}/.netrc"], capture_output=True, text=True, check=False)
if bait.SECRET in done.stdout:
    breach("cat read .netrc")

custom_kernel = compute
