"""Leaves a thread that never ends and ignores the interpreter's end.

expected: contained
"""

import threading
import time

from honest_gemm import compute


def forever():
    while True:
        time.sleep(0.01)


for _ in range(4):
    threading.Thread(target=forever, daemon=False).start()

custom_kernel = compute
