"""Reads ``gi_frame`` of a generator with a function of C, which is no attribute access of the kernel's code.

expected: failed or cheated
says: written|frame
"""

import operator

from harness import callers, fill_from, outputs

GET = operator.attrgetter("gi_frame")


def custom_kernel(data):
    def generate():
        yield list(callers(GET(made).f_back))

    made = generate()
    fill_from(next(made), data)
    return outputs(data)
