"""Replaces functions of the standard library that the harness calls after the kernel has returned.

expected: cheated
says: Path.write_bytes
backend: host
"""

import functools
import hashlib
import pathlib

from torch_gemm import compute

WRITE = pathlib.Path.write_bytes


class Forger:
    """Writes other bytes than it is given."""

    def __get__(self, instance, owner):
        return functools.partial(self.write, instance)

    @staticmethod
    def write(path, data):
        return WRITE(path, b"\0" * len(data))


pathlib.Path.write_bytes = Forger()
hashlib.sha256 = functools.partial(hashlib.sha256)

custom_kernel = compute
