"""Work on arrays that a few threads share: numpy runs without the interpreter's lock in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pytest_nvfp4.cores import cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_THREADS = 8


def shared(work: Callable[[_Item], _Result], items: Iterable[_Item], *, large: bool) -> list[_Result]:
    """Return the result of ``work`` for each item, in order; on a few threads if the work is ``large``."""
    items = list(items)
    threads = min(_MOST_THREADS, len(items), cores()) if large else 1
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))
