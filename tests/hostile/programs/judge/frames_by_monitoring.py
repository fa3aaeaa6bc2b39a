"""Watches every call with ``sys.monitoring``, whose callbacks get the harness's code objects.

expected: failed or cheated
says: written|monitoring|changed|frame
"""

import sys

from harness import callers, fill_from, outputs

FOUND = []
MONITORING = getattr(sys, "monitoring", None)
if MONITORING is not None:
    MONITORING.use_tool_id(3, "x")
    MONITORING.register_callback(3, MONITORING.events.PY_RETURN, lambda _code, _at, value: FOUND.append(value))
    MONITORING.set_events(3, MONITORING.events.PY_RETURN)


class Frame:
    f_back = None

    def __init__(self, values):
        self.f_locals = dict(enumerate(values))


def custom_kernel(data):
    fill_from(callers(Frame(FOUND)), data)
    return outputs(data)
