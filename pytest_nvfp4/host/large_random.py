"""Random tensors that are larger than memory, such as one that a benchmark draws to evict the L2 cache.

GPU MODE's ``clear_l2_cache_large`` draws 62.5 GiB. Such a tensor repeats the random numbers of its first ``_PERIOD``
bytes in read-only memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

LARGE: Final = 16 << 30
"""Bytes of a tensor from which its random numbers repeat."""
_PERIOD: Final = 64 << 20
_WIDEST: Final = 16
"""Bytes of the widest element, complex128."""
_RANDOM: Final = frozenset({"aten::rand", "aten::randint", "aten::randn"})


def shortened(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, list[Any]] | None:
    """Return a large random tensor on the meta device and the arguments of its first period; None for other calls.

    Args:
        func, args, kwargs: An operator of torch and its arguments.
    """
    device = kwargs.get("device")
    if func._schema.name not in _RANDOM or not isinstance(device, torch.device) or device.type != "cuda":
        return None
    place = [argument.name for argument in func._schema.arguments].index("size")
    if place >= len(args) or math.prod(args[place]) * _WIDEST < LARGE:
        return None
    others = {name: value for name, value in kwargs.items() if name not in ("device", "generator")}
    whole = func(*args, **others, device="meta")
    if whole.nbytes < LARGE:
        return None
    return whole, [*args[:place], [_PERIOD // whole.element_size()], *args[place + 1 :]]
