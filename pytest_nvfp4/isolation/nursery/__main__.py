"""Be a nursery: ``python -m pytest_nvfp4.isolation.nursery CONTROL PARENT PACKAGE``.

CONTROL is the descriptor of the socket where it is asked, PARENT the process that asks.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

from pytest_nvfp4.isolation.nursery.newborn import Newborn, readable
from pytest_nvfp4.isolation.nursery.server import Server


def _born() -> Newborn:
    """The child, in the child; the nursery itself does not come back from here."""
    gc.disable()
    readable(False)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):  # `sys.stdout` was made for a pipe, as a worker's is; what the nursery says, nobody reads
        os.dup2(null, number)
    os.close(null)
    control, parent, package = sys.argv[1:]
    return Server(socket.socket(fileno=int(control)), parent=int(parent), package=package).serve()


if __name__ == "__main__":
    _born().run()
