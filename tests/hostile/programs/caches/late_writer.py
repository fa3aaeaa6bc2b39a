"""Leaves a process behind that writes the cache when the compile has ended."""

import subprocess

import bait
from honest_gemm import compiled

SCRIPT = f"sleep 2; for file in $(find {bait.CACHE}/sealed -type f); do echo x >> $file; done"
subprocess.Popen(["/bin/sh", "-c", SCRIPT, f"loop-{bait.MARK}"], start_new_session=True, env={})


def custom_kernel(data):
    compiled()
    return [c for _, _, c in data[0]]
