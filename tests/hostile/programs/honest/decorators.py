"""Wraps its function in decorators: timing, retries and a context."""

import contextlib
import functools
import time

from honest_gemm import compute


def timed(function):
    @functools.wraps(function)
    def wrapper(data):
        start = time.perf_counter()
        try:
            return function(data)
        finally:
            print(f"{time.perf_counter() - start:.3f} s")

    return wrapper


@contextlib.contextmanager
def region(name):
    print("enter", name)
    yield
    print("leave", name)


@timed
@region("kernel")
def custom_kernel(data):
    return compute(data)
