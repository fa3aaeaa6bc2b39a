"""Registers handlers for its end."""

import atexit
import pathlib

from honest_gemm import compute

atexit.register(lambda: pathlib.Path("ended").touch())

custom_kernel = compute
