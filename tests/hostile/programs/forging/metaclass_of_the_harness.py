"""Changes bases and attributes of the harness's classes through ``type.__setattr__`` and ``__bases__``.

expected: cheated
says: event_sender
backend: host
"""

from harness import module
from torch_gemm import compute


class Base:
    """Says yes."""

    def __eq__(self, other):
        return True

    __hash__ = None


def custom_kernel(data):
    events = module("isolation.event_sender")
    for value in list(vars(events).values()):
        if isinstance(value, type) and value.__module__ == events.__name__:
            type.__setattr__(value, "__eq__", Base.__eq__)
            type.__setattr__(value, "stage", lambda self, name: None)
    return compute(data)
