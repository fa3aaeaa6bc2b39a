"""Changes ``__defaults__`` and ``__kwdefaults__`` of every function of the harness that has any.

expected: cheated or crashed or error
says: default
backend: host
"""

import sys
import types

from harness import PACKAGE
from torch_gemm import compute


def custom_kernel(data):
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith(PACKAGE + ".device") else ():
            if isinstance(value, types.FunctionType) and value.__kwdefaults__:
                value.__kwdefaults__ = dict.fromkeys(value.__kwdefaults__)
            if isinstance(value, types.FunctionType) and value.__defaults__:
                value.__defaults__ = (None,) * len(value.__defaults__)
    return compute(data)
