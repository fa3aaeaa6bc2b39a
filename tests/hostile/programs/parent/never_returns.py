"""Waits for ever, with every signal blocked that can be.

expected: timeout
says: deadline
deadline: 4
"""

import signal
import time


def custom_kernel(data):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    while True:
        time.sleep(1)
