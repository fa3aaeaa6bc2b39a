"""Thread-value layouts as the DSL prints them."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numpy.typing import NDArray


def offsets(shape: Any, stride: Any) -> NDArray[np.int64]:
    """All values of a layout, first mode fastest."""
    if isinstance(shape, int):
        return np.arange(shape) * stride
    found = np.zeros(1, np.int64)
    for size, step in zip(shape, stride, strict=True):
        found = (found[None, :] + offsets(size, step)[:, None]).ravel()
    return found


def by_thread_and_value(text: str) -> NDArray[np.int64]:
    """``(threads, values)`` of a thread-value layout."""
    shape, stride = (ast.literal_eval(part) for part in text.split(":"))
    threads, values = (offsets(s, d) for s, d in zip(shape, stride, strict=True))
    return threads[:, None] + values[None, :]


def parsed(name: str) -> tuple[int, int, int]:
    shape = name.split()[1]
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)
