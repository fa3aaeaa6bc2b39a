"""Matrix products that do not stall when every core is busy."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics import blas
from pytest_nvfp4.numerics.threads import shared

_Float = TypeVar("_Float", bound=np.floating[Any])

_SIDE = 256
"""Rows and columns of a piece, which is shared out."""
_SMALL_SIDE, _SMALL_DEPTH = 48, 112
"""Pieces of 48 x 48 outputs and 112 products: just below 2^18 multiply-adds, up to which OpenBLAS uses one thread."""
LARGE = 1 << 24
"""Multiply-adds from which starting threads pays off."""


def product(a: NDArray[_Float], b: NDArray[_Float]) -> NDArray[_Float]:
    """Compute ``a [m, k] @ b [n, k].T`` in their type, in pieces of the result that do not depend on the machine.

    A product handed to numpy whole is spread over the BLAS's threads, and then waits for the slowest of them. With as
    many test processes as cores (xdist) that wait dominates: a product of 0.1 ms was seen to take 25 ms, and the
    largest benchmark problem 36 s instead of 5. Pieces on one thread each cost the same however busy the machine is;
    those of a large product are shared out over a few threads of our own, which wait for each other once, at the end.
    Which thread makes a piece changes nothing in its sums.
    """
    (m, k), n = a.shape, b.shape[0]
    out = np.zeros((m, n), a.dtype)

    def make(corner: tuple[int, int]) -> None:
        rows, columns = (slice(start, start + _SIDE) for start in corner)
        _into(out[rows, columns], a[rows], b[columns])

    shared(make, itertools.product(range(0, m, _SIDE), range(0, n, _SIDE)), large=m * n * k >= LARGE)
    return out


def on_one_thread(a: NDArray[_Float], b: NDArray[_Float]) -> NDArray[_Float]:
    """Compute ``a [m, k] @ b [n, k].T`` on the calling thread alone."""
    out = np.zeros((a.shape[0], b.shape[0]), a.dtype)
    _into(out, a, b)
    return out


def _into(out: NDArray[_Float], a: NDArray[_Float], b: NDArray[_Float]) -> None:
    """Add a product to zeros."""
    with blas.one_thread() as certain:
        if certain:
            np.matmul(a, b.T, out=out)
            return
    for row, column in itertools.product(range(0, len(a), _SMALL_SIDE), range(0, len(b), _SMALL_SIDE)):
        rows, columns = slice(row, row + _SMALL_SIDE), slice(column, column + _SMALL_SIDE)
        piece = out[rows, columns]
        for start in range(0, a.shape[1], _SMALL_DEPTH):
            span = slice(start, start + _SMALL_DEPTH)
            piece += a[rows, span] @ b[columns, span].T
