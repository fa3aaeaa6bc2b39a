"""Keeps state for each thread."""

import threading

from honest_gemm import compute

STATE = threading.local()


def custom_kernel(data):
    STATE.calls = getattr(STATE, "calls", 0) + 1
    return compute(data)
