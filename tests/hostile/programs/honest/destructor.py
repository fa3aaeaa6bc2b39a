"""Frees a resource in ``__del__``, and collects garbage itself."""

import gc

from honest_gemm import compute


class Resource:
    """Holds nothing."""

    def __del__(self):
        print("released")


def custom_kernel(data):
    resource = Resource()
    resource.itself = resource
    del resource
    gc.collect()
    return compute(data)
