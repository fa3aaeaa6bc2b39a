"""Reaches the harness's frames from another interpreter of the process, in which no audit hook is set.

expected: cheated
says: another interpreter
backend: host
"""

import _xxsubinterpreters as interpreters

from harness import callers
from torch_gemm import compute

SOURCE = """
import sys
for top in sys._current_frames().values():
    while top is not None:
        if top.f_globals.get("SOURCE") is not None:
            top.f_globals["FRAME"] = top
        top = top.f_back
"""
FRAME = None


def custom_kernel(data):
    interpreters.run_string(interpreters.create(), SOURCE)
    assert len(list(callers(FRAME))) > 1
    return compute(data)
