"""Gives modules of the harness another class, whose attribute access is the kernel's.

expected: cheated
says: __class__|class|module
backend: host
"""

import sys
import types

from harness import PACKAGE
from torch_gemm import compute


class Other(types.ModuleType):
    """A module whose functions may be anything."""

    def __getattribute__(self, name):
        return super().__getattribute__(name)


def custom_kernel(data):
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE + ".") and type(module) is types.ModuleType:
            module.__class__ = Other
    return compute(data)
