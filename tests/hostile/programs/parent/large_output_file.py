"""Puts a file of 3 GB in place of every file of the job's folder.

expected: contained or failed or cheated or error
"""

import contextlib
import os
import pathlib

from honest_gemm import compute


def custom_kernel(data):
    for path in (*pathlib.Path("..").glob("*"), *(pathlib.Path("..", f"0-{call}-0.bin") for call in range(9))):
        with contextlib.suppress(OSError):
            if path.is_file() or not path.exists():
                path.touch()
                os.truncate(path, 3 << 30)
    return compute(data)
