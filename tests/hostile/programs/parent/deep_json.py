"""Writes JSON that is nested 100,000 times to every pipe.

expected: crashed or cheated or error or failed
says: pipe|event|read|nested|protocol|result|written|depth
"""

import contextlib
import os
import stat

from harness import outputs

LINE = b'{"event":"finding","detail":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"


def custom_kernel(data):
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFIFO, stat.S_IFSOCK):
                os.write(descriptor, LINE)
    return outputs(data)
