"""Compiles a helper with the C compiler, if there is one, and calls it."""

import ctypes
import pathlib
import shutil
import subprocess

from honest_gemm import compute

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if COMPILER is not None:
    pathlib.Path("helper.c").write_text("int twice(int x) { return 2 * x; }\n")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", "helper.so", "helper.c"], check=True)
    assert ctypes.CDLL("./helper.so").twice(21) == 42

custom_kernel = compute
