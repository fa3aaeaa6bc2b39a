"""Asks ``logging``, which asks for frames itself, for the frame of its caller.

expected: failed or cheated
says: requests the frames
"""

import logging

from harness import callers, fill_from, outputs


def custom_kernel(data):
    fill_from(callers(logging.currentframe()), data)
    return outputs(data)
