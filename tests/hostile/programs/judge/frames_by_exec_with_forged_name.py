"""Reaches the frames from code that is compiled under the name of a file of the harness.

expected: failed or cheated
says: written|frames|makes code
"""

import sys

from harness import callers, fill_from, module, outputs

SOURCE = "def look():\n    return sys._getframe(2)\n"
NAMES = {"sys": sys}
exec(compile(SOURCE, module("finding").__file__, "exec"), NAMES)


def custom_kernel(data):
    fill_from(callers(NAMES["look"]()), data)
    return outputs(data)
