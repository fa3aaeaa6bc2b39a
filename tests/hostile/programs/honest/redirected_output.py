"""Redirects its own output to memory and to a file."""

import contextlib
import io

from honest_gemm import compute


def custom_kernel(data):
    with contextlib.redirect_stdout(io.StringIO()) as text, open("err.txt", "w") as file:
        with contextlib.redirect_stderr(file):
            print("to memory")
            found = compute(data)
    assert text.getvalue() == "to memory\n"
    return found
