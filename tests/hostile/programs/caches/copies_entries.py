"""Copies the entries of other kernels over each other, and links one to another."""

import contextlib
import os
import pathlib
import shutil

import bait
from harness import fail
from honest_gemm import compiled

traces = sorted(pathlib.Path(bait.CACHE).glob("sealed/traces/??/*")) if os.access(bait.CACHE, os.R_OK) else []
for index, entry in enumerate(traces):
    with contextlib.suppress(OSError):
        other = traces[index - 1]
        shutil.copytree(other, entry.with_name("f" * 32), dirs_exist_ok=True)
        fail("an entry was copied")
    with contextlib.suppress(OSError):
        shutil.rmtree(entry)
        os.symlink(traces[index - 1], entry)
        fail("an entry was linked")


def custom_kernel(data):
    compiled()
    return [c for _, _, c in data[0]]
