"""Uses context variables, and copies contexts."""

import contextvars

from honest_gemm import compute

TILE = contextvars.ContextVar("tile", default=64)


def custom_kernel(data):
    context = contextvars.copy_context()
    context.run(TILE.set, 128)
    assert TILE.get() == 64
    return compute(data)
