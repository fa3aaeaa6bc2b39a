"""Reads the frames out of a traceback that ``sys.exc_info`` gives, by ``object.__getattribute__``.

expected: failed or cheated
says: written|frame
"""

import sys

from harness import callers, fill_from, outputs


def custom_kernel(data):
    try:
        raise ValueError
    except ValueError:
        traceback = sys.exc_info()[2]
    fill_from(callers(object.__getattribute__(traceback, "tb_frame")), data)
    return outputs(data)
