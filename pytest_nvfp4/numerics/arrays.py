"""Array types of this package, and the checks that its functions make of their arguments."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
"""Packed E2M1 pairs, E2M1 codes (one a byte) or E4M3 codes."""
Half: TypeAlias = NDArray[np.float16]
HalfBits: TypeAlias = NDArray[np.uint16]
"""fp16 as its bits: NaN payloads and the sign of zero survive copies and comparisons."""
Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]
Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


class NumericsError(ValueError):
    """An argument whose shape, type or content is wrong for NVFP4."""


def ceil_div(a: int, b: int) -> int:
    """Return the quotient rounded up, for ``a >= 0`` and ``b > 0``."""
    return -(-a // b)


def require_bytes(name: str, array: NDArray[Any], *, shape: tuple[int, ...] | None = None) -> Bytes:
    """Return the array after checking that it is uint8 (and of ``shape``).

    float8 and float4 tensors of other libraries must be viewed as uint8 first: a conversion would change the codes.

    Raises:
        NumericsError: another dtype or shape.
    """
    if array.dtype != np.uint8:
        raise NumericsError(f"{name} has dtype {array.dtype}, not uint8; pass the codes' bytes (view, do not convert)")
    if shape is not None and array.shape != shape:
        raise NumericsError(f"{name} has shape {list(array.shape)}, not {list(shape)}")
    return array


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make a shared table read-only and return it."""
    array.setflags(write=False)
    return array
