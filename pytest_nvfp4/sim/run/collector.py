"""Frequency of Python's garbage collection while a grid runs.

By default the collector runs after every 700 allocations and scans the running CTAs, and sometimes the whole process
with torch and a compiler: 8 % of the time of a large launch (352 CTAs, measured on a CPU). ``Cluster.dissolve`` breaks
the cycles of an ended cluster, so little garbage is left: the collector runs seldom here, and objects from before the
launch are frozen.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["seldom"]

_ALLOCATIONS = 50_000
"""Net allocations of containers between two collections."""


@contextlib.contextmanager
def seldom() -> Iterator[None]:
    """Reduce the frequency of garbage collection inside the context. Does nothing if collection is disabled."""
    if not gc.isenabled():
        yield
        return
    before = gc.get_threshold()
    frozen = gc.get_freeze_count()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        gc.set_threshold(*before)
