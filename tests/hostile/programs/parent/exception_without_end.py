"""Raises an exception whose text has 200 MB, with a chain of 2,000 causes.

expected: error or crashed
says: failed|error|ended
"""


def custom_kernel(data):
    error = ValueError("x" * (200 << 20))
    for index in range(2000):
        following = RuntimeError(str(index))
        following.__cause__ = error
        error = following
    raise error
