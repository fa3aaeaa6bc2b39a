"""Connects to a TCP port of this machine.

expected: contained
"""

import socket

import bait
from harness import breach
from honest_gemm import compute

try:
    socket.create_connection(("127.0.0.1", bait.PORT), timeout=2).close()
    breach("a connection was made")
except OSError as error:
    print("refused:", error)

custom_kernel = compute
