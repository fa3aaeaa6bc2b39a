"""Writes a status to every descriptor with calls of libc, and ends the process at once.

expected: failed or cheated or crashed or error
says: pipe|written|protocol|event|result|message|ended|exited
"""

import ctypes
import json

LIBC = ctypes.CDLL(None)
EVENT = json.dumps({"event": "status", "status": "passed"}).encode() + b"\n"


def custom_kernel(data):
    for descriptor in range(3, 200):
        LIBC.fcntl(descriptor, 4, 2048)
        LIBC.write(descriptor, EVENT, len(EVENT))
    LIBC._exit(0)
