"""Sets a timer with a handler of its own, as a guard against its own hangs."""

import signal

from honest_gemm import compute


def late(_number, _frame):
    raise TimeoutError("the launch takes too long")


def custom_kernel(data):
    previous = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        return compute(data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
