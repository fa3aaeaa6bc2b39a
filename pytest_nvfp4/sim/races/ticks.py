"""The ticks of a clock, and what fences and accesses make of copies of them.

A clock has eight rows, which travel together along every edge of the causality order (PTX ISA, "Memory Consistency
Model"):

- ``BEFORE``: what happened before.
- ``VISIBLE``: what of it has visible writes. An mbarrier's arrive of ``.cta`` scope in another CTA does not pass on
  those of the generic proxy (``scopes``).
- ``ASYNC_SHARED``, ``ASYNC_GLOBAL``: what of it is visible to the async proxy, in shared and in global memory (PTX ISA,
  "Proxies"; ``fence.proxy.async``).
- ``INITS``: which ``mbarrier.init`` are visible; ``fence.mbarrier_init`` sends them through a relaxed cluster barrier.
- ``TENSOR``, ``ISSUED``: ``tcgen05`` work that was complete, or only issued, before a synchronisation of threads (by a
  commit or ``tcgen05.fence::before_thread_sync``). Relaxed barriers and accesses pass these two on (``tensor_order``).
- ``SC``: what a ``fence.sc`` of the device has covered. These fences have a total order, so a later one in any thread
  acquires everything that strong reads have brought to it (PTX ISA, "Fence-SC order").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ticks: TypeAlias = NDArray[np.int64]
"""Eight rows, one column an agent."""
TickRow: TypeAlias = NDArray[np.int64]
"""One row of them."""
Snapshot: TypeAlias = dict[int, Ticks]
"""Immutable copy of a clock: by cluster, the ticks of its agents."""
Change: TypeAlias = Callable[[Ticks], Ticks | None]
"""What a fence or an access makes of a copy of ticks, which it returns if it changes nothing; None for nothing."""

ROWS = 8
BEFORE, VISIBLE, ASYNC_SHARED, ASYNC_GLOBAL, INITS, TENSOR, ISSUED, SC = range(ROWS)


def joined(first: Ticks, second: Ticks) -> Ticks:
    """Return the join of two copies of ticks. It is one of them if that has all of the other."""
    if first.shape[1] < second.shape[1]:
        first, second = second, first
    width = second.shape[1]
    part = first[:, :width]
    later = second > part
    count = np.count_nonzero(later)
    if not count:
        return first
    if width == first.shape[1] and count == np.count_nonzero(second != part):
        return second
    result = first.copy()
    np.copyto(result[:, :width], second, where=later)
    return result


def proxy_fenced(ticks: Ticks) -> Ticks:
    """Return ticks with everything that happened before visible to the async proxy in global memory."""
    if np.array_equal(ticks[ASYNC_GLOBAL], ticks[BEFORE]):
        return ticks
    fenced = ticks.copy()
    fenced[ASYNC_GLOBAL] = fenced[BEFORE]
    return fenced


def covered(ticks: Ticks) -> Ticks:
    """Return ticks behind a ``fence.sc`` of the device."""
    if (ticks[:ASYNC_SHARED] >= ticks[SC]).all() and np.array_equal(ticks[SC], ticks[VISIBLE]):
        return ticks
    covered = ticks.copy()
    covered[:ASYNC_SHARED] = np.maximum(ticks[:ASYNC_SHARED], ticks[SC])
    covered[SC] = covered[VISIBLE]
    return covered


def relaxed(ticks: Ticks, most: int = ISSUED) -> Ticks | None:
    """Return the rows of a copy that a relaxed access passes on, up to ``most``; None if that is nothing."""
    rows = slice(TENSOR, most + 1)
    if not np.count_nonzero(ticks[rows]):
        return None
    only = np.zeros_like(ticks)
    only[rows] = ticks[rows]
    return only


def relaxed_covered(ticks: Ticks) -> Ticks | None:
    """Return the rows that a relaxed access passes on, with what a ``fence.sc`` has covered."""
    return relaxed(ticks, SC)
