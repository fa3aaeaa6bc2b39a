"""Reaches the frames of its callers through ``eval``, whose code has no file of the kernel's.

expected: failed or cheated
says: written|frames
"""

import sys

from harness import callers, fill_from, outputs

NAMES = {"sys": sys}


def custom_kernel(data):
    fill_from(callers(eval("sys._getframe(1)", NAMES)), data)
    return outputs(data)
