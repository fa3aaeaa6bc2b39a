"""Random tensors that are larger than memory, such as one that a benchmark draws to evict the L2 cache.

GPU MODE's ``clear_l2_cache_large`` draws 62.5 GiB. Such a tensor repeats the random numbers of its first ``_PERIOD``
bytes in read-only memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import torch

LARGE: Final = 16 << 30
"""Bytes of a tensor from which its random numbers repeat."""
_PERIOD: Final = 64 << 20
_WIDEST: Final = 16
"""Bytes of the widest element, complex128."""
_ATEN, _LIKE = "aten::", "_like"
_RANDOM: Final = frozenset({"aten::rand", "aten::randint", "aten::randn"})


class Shortened(NamedTuple):
    """A large random tensor, on the meta device, and the operator that draws its first period."""

    whole: torch.Tensor
    func: Any
    args: list[Any]
    kwargs: dict[str, Any]


def shortened(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, on_device: Collection[int]
) -> Shortened | None:
    """Return how a large random tensor is drawn; None for other calls.

    Args:
        func, args, kwargs: An operator of torch and its arguments.
        on_device: Which of the arguments are tensors on the device, by identity.
    """
    name = func._schema.name
    if name.removesuffix(_LIKE) not in _RANDOM:
        return None
    device = kwargs.get("device")
    if name.endswith(_LIKE):
        like = args[0]
        if device is None and id(like) in on_device:
            device = torch.device("cuda")
        if not isinstance(device, torch.device) or device.type != "cuda" or like.numel() * _WIDEST < LARGE:
            return None
        dtype = kwargs.get("dtype") or like.dtype
        whole = torch.empty_like(
            torch.empty_strided(like.size(), like.stride(), dtype=dtype, device="meta"),
            memory_format=kwargs.get("memory_format") or torch.preserve_format,
        )
        drawn = getattr(torch.ops.aten, name.removeprefix(_ATEN).removesuffix(_LIKE))
        func = drawn.low if len(args) == 3 else drawn.default
        args, place, kwargs = [*args[1:], None], len(args) - 1, {"dtype": dtype, "device": device}
    else:
        if not isinstance(device, torch.device) or device.type != "cuda":
            return None
        place = [argument.name for argument in func._schema.arguments].index("size")
        if place >= len(args) or math.prod(args[place]) * _WIDEST < LARGE:
            return None
        others = {key: value for key, value in kwargs.items() if key not in ("device", "generator")}
        whole = func(*args, **others, device="meta")
    if whole.nbytes < LARGE:
        return None
    few = [*args[:place], [_PERIOD // whole.element_size()], *args[place + 1 :]]
    return Shortened(whole, func, few, kwargs)
