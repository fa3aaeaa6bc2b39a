"""Number of threads of numpy's matrix products.

A product that numpy spreads over threads waits for the slowest of them: where several processes or threads of our own
share the cores, one thread for each product is faster. OpenBLAS, which numpy's wheels contain, has a setter for the
number; with another BLAS nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
)


class Threads:
    """The number of threads, which is one for the whole process.

    Args:
        get: Returns it.
        set_to: Sets it.
    """

    def __init__(self, get: Callable[[], int], set_to: Callable[[int], object]) -> None:
        self._get = get
        self._set = set_to
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Let products use one thread inside the block; several threads may be in such blocks at once."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = int(self._get())
                self._set(1)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._set(self._before)


@cache
def threads() -> Threads | None:
    """Return the threads of the OpenBLAS that numpy loaded, None without one."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
    for path in (path for folder in folders for path in sorted(folder.glob("*openblas*"))):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))
            for getter, setter in _NAMES:
                if hasattr(library, getter) and hasattr(library, setter):
                    return Threads(getattr(library, getter), getattr(library, setter))
    return None


@contextlib.contextmanager
def one_thread() -> Iterator[bool]:
    """Let products use one thread inside the block. The value is whether that is certain."""
    found = threads()
    if found is None:
        yield False
        return
    with found.one():
        yield True
