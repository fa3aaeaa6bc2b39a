"""Replaces functions of its own modules, also their code and defaults."""

import honest_gemm


def doubled(value=1):
    return 2 * value


doubled.__defaults__ = (4,)
doubled.__code__ = (lambda value: 3 * value).__code__
assert doubled() == 12
ORIGINAL = honest_gemm.compute
honest_gemm.compute = lambda data: ORIGINAL(data)


def custom_kernel(data):
    return honest_gemm.compute(data)
