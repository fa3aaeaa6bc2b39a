"""Changes fields of frozen objects of the harness by ``object.__setattr__``: guards of C of no rows.

expected: cheated
says: object
backend: host
"""

import gc

from harness import PACKAGE
from torch_gemm import compute


def custom_kernel(data):
    for value in gc.get_objects():
        kind = type(value)
        if kind.__module__.startswith(PACKAGE) and kind.__name__ in ("PlannedCall", "JobCase"):
            for name in getattr(kind, "__dataclass_fields__", ()):
                if isinstance(getattr(value, name, None), int):
                    object.__setattr__(value, name, 0)
    return compute(data)
