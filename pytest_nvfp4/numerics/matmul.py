"""A matrix product that does not stall when every core is busy."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.cores import cores

_Float = TypeVar("_Float", bound=np.floating[Any])

_SIDE, _DEPTH = 48, 112
"""Pieces of 48 x 48 outputs and 112 products: just below 2^18 multiply-adds, up to which OpenBLAS uses one thread."""
_LARGE = 1 << 24
"""Multiply-adds from which starting threads pays off."""
_MOST_THREADS = 8


def product(a: NDArray[_Float], b: NDArray[_Float]) -> NDArray[_Float]:
    """Compute ``a [m, k] @ b [n, k].T`` in their type; each output is a sum over pieces of ``_DEPTH`` products.

    A product handed to numpy whole is spread over the BLAS's threads, and then waits for the slowest of them. With as
    many test processes as cores (xdist) that wait dominates: a product of 0.1 ms was seen to take 25 ms, and the
    largest benchmark problem 36 s instead of 5. Pieces that stay on one thread cost the same however busy the machine
    is; those of a large product are shared out over a few threads of our own, which wait for each other once, at the
    end. Which thread makes a piece changes nothing in its sums.
    """
    (m, k), n = a.shape, b.shape[0]
    out = np.zeros((m, n), a.dtype)

    def make(corner: tuple[int, int]) -> None:
        rows, columns = (slice(start, start + _SIDE) for start in corner)
        piece = out[rows, columns]
        for start in range(0, k, _DEPTH):
            span = slice(start, start + _DEPTH)
            piece += a[rows, span] @ b[columns, span].T

    corners = list(itertools.product(range(0, m, _SIDE), range(0, n, _SIDE)))
    threads = min(_MOST_THREADS, len(corners), cores()) if m * n * k >= _LARGE else 1
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(make, corners))
    else:
        for corner in corners:
            make(corner)
    return out
