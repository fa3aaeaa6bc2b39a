"""Writes a million findings to every pipe.

expected: crashed or cheated or error or failed
says: pipe|event|limit|protocol|result|written
"""

import json
import os
import stat

from harness import outputs

LINE = json.dumps({"event": "finding", "kind": "x", "message": "x", "severity": "warning"}).encode() + b"\n"


def custom_kernel(data):
    for descriptor in range(3, 64):
        try:
            if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFIFO, stat.S_IFSOCK):
                os.set_blocking(descriptor, True)
                for _ in range(1000):
                    os.write(descriptor, LINE * 1000)
        except OSError:
            continue
    return outputs(data)
