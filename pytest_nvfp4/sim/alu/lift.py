"""Lifting of functions of arrays to functions of register values.

A *kernel* takes arrays of unsigned patterns that broadcast against each other and returns an array of patterns or of
booleans. ``lift`` makes it accept ints too: all ints give an int (cached, because uniform code repeats itself), and an
int beside an array is broadcast. Kernels also see the values of inactive lanes, so the caller enters
``numpy.errstate(all="ignore")`` once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import DTYPES

Array = NDArray[Any]
Kernel = Callable[..., Array]
Factory = TypeVar("Factory", bound=Callable[..., Kernel])

SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


_MOST_TOGETHER = 8192
"""Most lanes of several calls that are made as one. Measured for ``fma.rn.f32``: one call on 8,192 lanes takes a third
of the time of eight, one on 16,384 twice as long."""


def signed(value: Array) -> Array:
    """Reinterpret unsigned patterns as two's complement numbers of the same width."""
    return value.view(SIGNED[8 * value.itemsize])


def unsigned(value: Array) -> Array:
    """Reinterpret signed numbers as unsigned patterns of the same width."""
    return value.view(DTYPES[8 * value.itemsize])


def clamped(value: Array) -> Array:
    """Convert int64 numbers to s32 patterns, clamped to the range."""
    return np.clip(value, -(1 << 31), (1 << 31) - 1).astype(np.int32).view(np.uint32)


def parts(value: Array, bits: int) -> Array:
    """Split each lane into lanes of its own, lowest part first."""
    return (value if value.flags.c_contiguous else value.copy()).view(DTYPES[bits])


@lru_cache(maxsize=4096)
def spread(value: int, bits: int, count: int = 32) -> Array:
    """Return an int as a cached array, read-only as every register value is. A gang has more than 32 lanes."""
    array = np.full(count, value, DTYPES[bits])
    array.flags.writeable = False
    return array


@lru_cache(maxsize=256)
def _repeated(value: int, bits: int, count: int) -> Array:
    """Return what ``spread`` does, for the many lanes of several calls, of which fewer arrays are kept."""
    return spread.__wrapped__(value, bits, count)


def kernels(factory: Factory) -> Factory:
    """Cache a factory of kernels; name each kernel after the factory and its arguments, for generated code."""

    def make(*arguments: Any) -> Kernel:
        kernel = factory(*arguments)
        words = [factory.__name__.strip("_"), *(str(value) for value in arguments if value not in (False, ""))]
        kernel.__name__ = "_".join(words)
        return kernel

    return cast("Factory", cache(make))


@cache
def on_pairs(kernel: Kernel, bits: int = 16) -> Kernel:
    """Turn a kernel of patterns of ``bits`` into one of pairs of them."""

    def compute(*pairs: Array) -> Array:
        return kernel(*(parts(pair, bits) for pair in pairs)).view(DTYPES[2 * bits])

    compute.__name__ = getattr(kernel, "__name__", "kernel") + "x2"
    return compute


@cache
def lift(kernel: Kernel, *bits: int) -> Callable[..., Any]:
    """Return the kernel as a function of one to four register values of widths ``bits``.

    Its attribute ``together`` makes several calls at once: it takes a sequence for each operand, with its value in each
    call, and returns the results. An array of results, or a slice of one, serves as the values of an operand as it is.
    """
    dtypes = [DTYPES[width] for width in bits]

    @lru_cache(maxsize=4096)
    def on_ints(*values: int) -> int | bool:
        with np.errstate(all="ignore"):
            result = kernel(*(np.array([value], dtype) for value, dtype in zip(values, dtypes, strict=True)))
        one: int | bool = result[0].item()
        return one

    def one(a: Any) -> Any:
        return on_ints(a) if a.__class__ is int else kernel(a)

    def two(a: Any, b: Any) -> Any:
        if a.__class__ is int:
            if b.__class__ is int:
                return on_ints(a, b)
            return kernel(spread(a, bits[0], b.size), b)
        return kernel(a, spread(b, bits[1], a.size) if b.__class__ is int else b)

    def many(*values: Any) -> Any:
        for value in values:
            if value.__class__ is not int:
                count = value.size
                break
        else:
            return on_ints(*values)
        return kernel(
            *(
                spread(value, width, count) if value.__class__ is int else value
                for value, width in zip(values, bits, strict=True)
            )
        )

    def together(*columns: Any) -> Any:
        count = len(columns[0])
        size = next((value.size for column in columns for value in column if value.__class__ is not int), 0)
        if not size or count * size > _MOST_TOGETHER:
            return [lifted(*row) for row in zip(*columns, strict=True)]
        try:
            joined = [
                column.reshape(-1)
                if column.__class__ is np.ndarray
                else _repeated(column[0], width, count * size)
                if column[0].__class__ is int and column.count(column[0]) == count
                else np.concatenate(column)
                for column, width in zip(columns, bits, strict=True)
            ]
        except ValueError:  # an int among arrays
            return _mixed(on_ints, kernel, bits, columns)
        return kernel(*joined).reshape(count, -1)

    by_count: dict[int, Callable[..., Any]] = {1: one, 2: two}
    lifted: Callable[..., Any] = by_count.get(len(bits), many)
    lifted.__name__ = getattr(kernel, "__name__", "kernel").strip("_<>") + "_" + "_".join(map(str, bits))
    lifted.together = together  # type: ignore[attr-defined]
    return lifted


def _mixed(
    on_ints: Callable[..., Any], kernel: Kernel, bits: tuple[int, ...], columns: tuple[Sequence[Any], ...]
) -> list[Any]:
    """Return the results of several calls, some operands of which are ints: see ``lift``."""
    rows = list(zip(*columns, strict=True))
    results: list[Any] = [None] * len(rows)
    arrays = []
    size = 0
    for number, row in enumerate(rows):
        if all(value.__class__ is int for value in row):
            results[number] = on_ints(*row)
        else:
            arrays.append(number)
            size = next(value.size for value in row if value.__class__ is not int)
    if arrays:
        joined = []
        for column, width in zip(columns, bits, strict=True):
            values = [column[number] for number in arrays]
            joined.append(
                np.concatenate([spread(value, width, size) if value.__class__ is int else value for value in values])
            )
        for number, result in zip(arrays, kernel(*joined).reshape(len(arrays), -1), strict=True):
            results[number] = result
    return results
