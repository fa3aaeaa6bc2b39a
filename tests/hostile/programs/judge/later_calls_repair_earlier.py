"""Leaves C wrong when it returns, and writes the right values from a thread afterwards.

expected: failed or cheated or error or crashed
says: written|later|after|thread|wrong|turn
"""

import threading
import time

from harness import outputs
from numpy_gemm import fill


def late(data):
    time.sleep(0.05)
    fill(data)


def custom_kernel(data):
    threading.Thread(target=late, args=(data,), daemon=True).start()
    return outputs(data)
