"""Caches functions and properties in every way of functools."""

import functools

from honest_gemm import compute


class Plan:
    """Remembers."""

    @functools.cached_property
    def tiles(self):
        return 4


@functools.lru_cache(maxsize=2)
def plan(sizes):
    return Plan()


def custom_kernel(data):
    assert plan(tuple(map(tuple, data[3]))).tiles == 4
    return compute(data)
