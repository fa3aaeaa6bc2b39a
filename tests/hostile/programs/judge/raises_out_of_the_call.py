"""Raises an exception that ends most programs, with a class whose text and hash are code of the kernel's.

expected: error or cheated or crashed
says: raise|failed|exit|ended|SystemExit
"""

from harness import breach


class Leaves(SystemExit):
    """Runs code where the harness looks at it."""

    def __str__(self):
        breach("the text of an exception was asked for in the harness") if False else None
        return "passed"

    def __reduce__(self):
        raise ValueError


def custom_kernel(data):
    raise Leaves(0)
