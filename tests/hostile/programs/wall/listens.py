"""Listens on a port, and sends a datagram.

expected: contained
"""

import contextlib
import socket

import bait
from harness import breach
from honest_gemm import compute

with contextlib.suppress(OSError), socket.create_server(("0.0.0.0", 0)):
    print("listening, which harms nobody where no one can connect")
with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.connect(("127.0.0.1", bait.PORT))
    sender.send(b"x")
    breach("a datagram was sent")

custom_kernel = compute
