"""Talks to itself over a pair of sockets, with a selector."""

import selectors
import socket

from honest_gemm import compute

left, right = socket.socketpair()
with left, right, selectors.DefaultSelector() as selector:
    selector.register(right, selectors.EVENT_READ)
    left.send(b"x")
    assert selector.select(timeout=60)
    assert right.recv(1) == b"x"

custom_kernel = compute
