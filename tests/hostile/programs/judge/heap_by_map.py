"""Searches the heap for the inputs: ``gc.get_objects`` is called by ``map``, from a thread of the standard library.

expected: failed or cheated
says: written|object|heap
"""

import concurrent.futures
import gc

from harness import callers, fill_from, outputs


class Frame:
    f_back = None

    def __init__(self, values):
        self.f_locals = dict(enumerate(values))


def custom_kernel(data):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        objects = next(iter(pool.map(gc.get_objects, [None])))
    fill_from(callers(Frame(objects)), data)
    return outputs(data)
