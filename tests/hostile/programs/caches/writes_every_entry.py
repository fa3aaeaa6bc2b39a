"""While it is compiled, appends a byte to every file of the cache, and of every folder above its own."""

import contextlib
import os
import pathlib

import bait
from harness import fail
from honest_gemm import compiled

for root in {bait.CACHE, *map(str, pathlib.Path.cwd().parents[:3])}:
    for folder, _, names in os.walk(root):
        for name in names if "sealed" in folder else ():
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "ab") as file:
                file.write(b" ")
                fail(f"{folder}/{name} was written")


def custom_kernel(data):
    compiled()
    return [c for _, _, c in data[0]]
