"""Number of threads of numpy's matrix products.

Several processes share the CTAs of a launch, so that a product must not start threads there: two processes with two
threads each on two cores are slower than one thread each. OpenBLAS, which numpy's wheels contain, has a setter for it;
with another BLAS nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
)


@cache
def _functions() -> tuple[Any, Any] | None:
    """Return the getter and the setter of the OpenBLAS that numpy loaded, None without one."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
    for path in (path for folder in folders for path in sorted(folder.glob("*openblas*"))):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))
            for getter, setter in _NAMES:
                if hasattr(library, getter) and hasattr(library, setter):
                    return getattr(library, getter), getattr(library, setter)
    return None


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let products use ``count`` threads inside the block."""
    functions = _functions()
    if functions is None:
        yield
        return
    get_threads, set_threads = functions
    before = int(get_threads())
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)
