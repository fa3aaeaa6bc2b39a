"""Changes what closures of the harness contain: a trap calls the kernel's function in place of its own.

expected: cheated or error or crashed
says: replaced|failed|ended
backend: host
"""

import sys
import types

from harness import PACKAGE
from torch_gemm import compute


def custom_kernel(data):
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith(PACKAGE) else ():
            for cell in (isinstance(value, types.FunctionType) and value.__closure__) or ():
                if isinstance(cell.cell_contents, types.FunctionType):
                    cell.cell_contents = lambda *_, **__: None
    return compute(data)
