"""A Modal server of our own on the loopback interface, for tests: small, and with faults that can be chosen.

It speaks the protocol of the installed client (the protos of its wheel) and runs functions by the client's own
container entrypoint, in processes of an environment without this repository on its path. It builds no image, knows no
GPU and no scheduler, and says nothing about how the real service behaves where that is not in the protocol.
"""

from .faults import Fault, Faults
from .server import Loopback

__all__ = ["Fault", "Faults", "Loopback"]
