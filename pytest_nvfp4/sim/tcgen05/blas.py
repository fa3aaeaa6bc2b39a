"""How many threads numpy's matrix products use.

Processes share the CTAs of a launch, so a product must not start threads of its own there: two processes with two
threads each on two cores are slower than without. OpenBLAS, which numpy's wheels bring, can be told so at run time;
with another BLAS nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["threads"]

_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
)


@cache
def _functions() -> tuple[Any, Any] | None:
    """The getter and the setter of the OpenBLAS that numpy has loaded, if it has."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
    for path in (found for folder in folders for found in sorted(folder.glob("*openblas*"))):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))
            for getter, setter in _NAMES:
                if hasattr(library, getter) and hasattr(library, setter):
                    return getattr(library, getter), getattr(library, setter)
    return None


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let products use ``count`` threads inside, and as many as before afterwards."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    before = int(get())
    put(count)
    try:
        yield
    finally:
        put(before)
