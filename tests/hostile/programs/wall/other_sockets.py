"""Opens sockets that reach the kernel and its services: netlink, packet, vsock and raw.

expected: contained
"""

import contextlib
import socket

from harness import breach
from honest_gemm import compute

for family, kind in (("AF_NETLINK", 3), ("AF_PACKET", 3), ("AF_VSOCK", 1), ("AF_INET6", 1)):
    with contextlib.suppress(OSError, AttributeError):
        socket.socket(getattr(socket, family), kind).close()
        breach(f"a socket of {family} was made")

custom_kernel = compute
