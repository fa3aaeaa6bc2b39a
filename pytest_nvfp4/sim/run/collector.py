"""How often Python looks for garbage cycles while a grid runs.

By default it looks after every 700 allocations, again and again through the CTAs that run, and sometimes through the
whole process, which holds torch and a compiler: 8 % of the time of a large launch (352 CTAs, measured on a CPU). Ended
clusters are taken apart when they end (``Cluster.dissolve``), so that little is left to find: here it looks seldom, and
never at what was there before the launch.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["seldom"]

_ALLOCATIONS = 50_000
"""Net allocations of containers between two looks."""


@contextlib.contextmanager
def seldom() -> Iterator[None]:
    """Look for cycles seldom inside, and as before afterwards. Does nothing where collection is switched off."""
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
