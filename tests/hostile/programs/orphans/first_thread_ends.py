"""Ends the first thread of a child, which then looks like a zombie and runs on.

expected: contained
"""

import os
import subprocess
import sys
import time

import bait
from honest_gemm import compute

RUNS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
time.sleep(0.1)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", RUNS, bait.MARK], env={}, start_new_session=True)
    os._exit(0)
time.sleep(0.3)

custom_kernel = compute
