"""Adds to the counters of launches that the simulator reports, after a launch that computed nothing.

expected: failed or cheated or error
says: written|replaced|object|multiply|modules
"""

import gc

from harness import PACKAGE, outputs


def custom_kernel(data):
    for value in gc.get_objects():
        if isinstance(value, dict) and "instructions" in value and PACKAGE:
            value["fma"] = value["mma"] = 1 << 40
    return outputs(data)
