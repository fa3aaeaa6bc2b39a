"""How often the garbage of this process is collected."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator

_THRESHOLD = 50_000
"""Net allocations of containers between two garbage collections."""


@functools.cache
def frozen_before() -> bool:
    """Return whether objects of this process were frozen before its first launch or compile.

    Python counts the objects, which takes 60 ms in a fork server; its children inherit the cached value.
    """
    return gc.get_freeze_count() > 0


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Reduce the frequency of garbage collection inside the context. Does nothing if collection is disabled.

    By default the collector runs after every 700 allocations and scans what is being built, and sometimes the whole
    process with torch and a compiler: 8 % of the time of a large launch (352 CTAs), and 20 % of the CPU time in which
    the DSL builds the IR of a large kernel. Little of it is garbage: ``Cluster.dissolve`` breaks the cycles of an ended
    cluster. Objects from before are frozen.
    """
    if not gc.isenabled():
        yield
        return
    before = gc.get_threshold()
    frozen = frozen_before()
    gc.set_threshold(_THRESHOLD, *before[1:])
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        gc.set_threshold(*before)
