"""``torch.cuda``'s statistics of memory: the bytes that a process's device tensors hold, now and at most.

torch's allocator keeps more than that reserved, which these numbers leave out. Its history and its snapshots have no
stand-in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.host.device_side import HeldMemory

_KINDS: Final = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
REFUSED: Final = (
    *("memory_snapshot", "memory_summary", "_record_memory_history", "_dump_snapshot", "_snapshot"),
    *("caching_allocator_alloc", "caching_allocator_delete", "change_current_allocator"),
)
"""Names in ``torch.cuda`` and ``torch.cuda.memory`` without a stand-in."""


def overrides(held: HeldMemory, model: DeviceModel) -> Iterator[tuple[Any, str, Any]]:
    """Yield the owner, name and value of each replacement."""
    functions = _functions(held, model)
    for owner in (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None)):
        for name, value in functions.items():
            if hasattr(owner, name):
                yield owner, name, value


def _functions(held: HeldMemory, model: DeviceModel) -> dict[str, Callable[..., Any]]:

    def stats(*_: Any) -> OrderedDict[str, int]:
        values = {"current": held.now, "peak": held.most}
        return OrderedDict(
            (f"{kind}.{pool}.{name}", value)
            for kind in _KINDS
            for pool in ("all", "large_pool", "small_pool")
            for name, value in (values if pool != "small_pool" else dict.fromkeys(values, 0)).items()
        )

    def reset(*_: Any) -> None:
        held.most = held.now

    def now(*_: Any) -> int:
        return held.now

    def most(*_: Any) -> int:
        return held.most

    def info(*_: Any) -> tuple[int, int]:
        return model.memory_bytes - held.now, model.memory_bytes

    def nothing(*_: Any, **__: Any) -> None: ...

    return {
        "memory_allocated": now,
        "memory_reserved": now,
        "memory_cached": now,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "max_memory_cached": most,
        "memory_stats": stats,
        "memory_stats_as_nested_dict": lambda *_: _nested(stats()),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": nothing,
        "mem_get_info": info,
        "get_memory_info": info,
        "set_per_process_memory_fraction": nothing,
        "empty_cache": nothing,
        "empty_host_cache": nothing,
        "ipc_collect": nothing,
    }


def _nested(values: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found
