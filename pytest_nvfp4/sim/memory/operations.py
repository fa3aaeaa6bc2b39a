"""Atomic operations on one element, for integers and for arrays of bit patterns (PTX ISA, "atom", "red").

- ``inc`` wraps to 0 at its operand; ``dec`` wraps to its operand at 0 or above it. Both are unsigned 32-bit.
- ``cas`` has two operands: the value to compare with, and the new value.
- Floating-point ``add`` rounds to nearest even. ``add.f32`` on global memory flushes subnormal inputs and results to
  zero of the same sign; on shared memory it does not. ``f64`` and ``.noftz`` halves never flush.
- A NaN result is 0x7FFFFFFF, 0x7FFF or 0x7FF8000000000000, as for ``add``. This is assumed: the ISA does not specify
  the NaN of an atomic.
- ``min`` and ``max`` of halves return the operand that is not NaN, and order -0 below +0, as ``min.f16`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.alu.numbers import floats, flushed

Scalar = Callable[[int, int, int, int], int]
"""``(old, operand, second operand, bits) -> new``, all unsigned patterns."""


def _signed(value: int, bits: int) -> int:
    return value - (value >> (bits - 1) << bits)


# Every function has all four parameters, so that the caller is the same for all.
INTEGER: dict[str, Scalar] = {
    "add": lambda o, b, _c, n: (o + b) & ((1 << n) - 1),
    "inc": lambda o, b, _c, _n: 0 if o >= b else o + 1,
    "dec": lambda o, b, _c, _n: b if o == 0 or o > b else o - 1,
    "min": lambda o, b, _c, _n: min(o, b),
    "max": lambda o, b, _c, _n: max(o, b),
    "smin": lambda o, b, _c, n: o if _signed(o, n) <= _signed(b, n) else b,
    "smax": lambda o, b, _c, n: o if _signed(o, n) >= _signed(b, n) else b,
    "and": lambda o, b, _c, _n: o & b,
    "or": lambda o, b, _c, _n: o | b,
    "xor": lambda o, b, _c, _n: o ^ b,
    "exch": lambda _o, b, _c, _n: b,
    "cas": lambda o, b, c, _n: c if o == b else o,
}
"""Integer operations by name; ``smin`` and ``smax`` compare signed values."""


_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def integer_arrays(name: str, old: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Apply an integer operation to each element of arrays of one unsigned type."""
    one = old.dtype.type(1)
    if name in ("smin", "smax"):
        signed = f"i{old.dtype.itemsize}"
        function: Any = np.minimum if name == "smin" else np.maximum
        chosen: NDArray[Any] = function(old.view(signed), b.view(signed)).view(old.dtype)
        return chosen
    if name == "inc":
        return np.where(old >= b, np.zeros_like(old), old + one)
    if name == "dec":
        return np.where((old == 0) | (old > b), b, old - one)
    if name == "cas":
        return np.where(old == b, c, old)
    result: NDArray[Any] = b.copy() if name == "exch" else _UFUNCS[name](old, b)
    return result


def real(name: str, kind: str, old: NDArray[Any], b: NDArray[Any], *, flush: bool) -> NDArray[Any]:
    """Apply ``add``, ``min`` or ``max`` to bit patterns of ``f16``, ``bf16``, ``f32`` or ``f64``."""
    x, y = _widen(old, kind, flush), _widen(b, kind, flush)
    with np.errstate(all="ignore"):
        if name == "add":
            return _narrow(x + y, kind, flush)
        better, zero = (y < x, np.signbit(y)) if name == "min" else (y > x, np.signbit(x))
        return _narrow(np.where(np.isnan(x) | better | ((x == y) & zero), y, x), kind, flush)


def _widen(bits: NDArray[Any], kind: str, flush: bool) -> NDArray[Any]:
    value = floats(bits, kind, flush=flush)
    return value.astype(np.float32) if kind == "f16" else value


def _narrow(value: NDArray[Any], kind: str, flush: bool) -> NDArray[Any]:
    nan = np.isnan(value)
    if kind == "f64":
        return np.where(nan, np.uint64(0x7FF8_0000_0000_0000), value.view(np.uint64))
    if kind == "f16":
        # Rounding the sum to 24 bits and then to 11 equals rounding once: double rounding of an add is innocuous if
        # the wider significand has at least 2p + 2 bits (24 = 2 * 11 + 2).
        return np.where(nan, np.uint16(0x7FFF), value.astype(np.float16).view(np.uint16))
    bits = value.view(np.uint32)
    if kind == "bf16":
        # Round to nearest even by adding 0x7FFF plus the lowest bit that remains.
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(nan, np.uint16(0x7FFF), rounded.astype(np.uint16))
    return np.where(nan, np.uint32(0x7FFF_FFFF), flushed(bits) if flush else bits)
