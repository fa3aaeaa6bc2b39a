"""float64 products that do not stall where every core is busy."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics.arrays import Float64

_SIDE, _DEPTH = 48, 112
"""Pieces of 48 x 48 outputs and 112 products: just below 2^18 multiply-adds, up to which OpenBLAS uses one thread."""


def product(a: Float64, b: Float64) -> Float64:
    """``a [m, k] @ b [n, k].T``, each output summed in pieces of ``_DEPTH`` products.

    A product handed to numpy whole is spread over the BLAS's threads, and then waits for the slowest of them. With as
    many test processes as cores (xdist) that wait dominates: a product of 0.1 ms was seen to take 25 ms, and the
    largest benchmark problem 36 s instead of 5. Pieces that stay on the calling thread cost the same however busy the
    machine is.
    """
    (m, k), n = a.shape, b.shape[0]
    out = np.zeros((m, n))
    for top in range(0, m, _SIDE):
        for left in range(0, n, _SIDE):
            piece = out[top : top + _SIDE, left : left + _SIDE]
            for start in range(0, k, _DEPTH):
                span = slice(start, start + _DEPTH)
                piece += a[top : top + _SIDE, span] @ b[left : left + _SIDE, span].T
    return out
