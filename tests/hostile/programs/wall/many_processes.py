"""Forks children, which fork children, until it is refused.

expected: contained or error or crashed
"""

import os
import time

from harness import breach
from honest_gemm import compute

made = 0
try:
    for _ in range(20_000):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
    breach("20,000 processes")
except OSError as error:
    print("refused after", made, error)

custom_kernel = compute
