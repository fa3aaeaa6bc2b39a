"""Replaces its folder by links that lead out, to devices and to itself.

expected: contained or failed or cheated or error
"""

import contextlib
import os

from honest_gemm import compute


def custom_kernel(data):
    for call in range(9):
        with contextlib.suppress(OSError):
            os.symlink(("/dev/zero", "/etc/passwd", f"0-{call}-0.bin")[call % 3], f"../0-{call}-0.bin")
    with contextlib.suppress(OSError):
        os.mkfifo("../pipe.bin")
    return compute(data)
