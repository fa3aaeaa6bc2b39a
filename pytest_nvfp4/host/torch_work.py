"""What an operator of torch does on the device: which bytes it reads and writes, and whether the host waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from pytest_nvfp4.driver.streams import Extent, Streams

__all__ = ["extent", "tell"]

_COPY: Final = "aten::copy_"
_MOVE: Final = "aten::_to_copy"
_INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
_MASKS: Final = frozenset({torch.bool, torch.uint8})


def extent(tensor: torch.Tensor) -> Extent:
    """The bytes of a tensor in host memory."""
    size = tensor.element_size()
    return Extent(tensor.data_ptr(), size, tuple(tensor.shape), tuple(step * size for step in tensor.stride()))


def tell(
    streams: Streams, func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, fresh: Sequence[torch.Tensor]
) -> None:
    """Tell of an operator that has run.

    Args:
        streams: Who is told.
        func: The operator.
        args, kwargs: Its arguments, device tensors as they are.
        fresh: The tensors behind its results, as far as they are new and have been given values.
    """
    reads: list[Extent] = []
    writes = [extent(tensor) for tensor in fresh]
    schema = func._schema
    for position, argument in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        into = reads
        if argument.alias_info is not None and argument.alias_info.is_write:
            into = writes
        into += [extent(one.host) for one in tree_leaves(value) if hasattr(one, "host")]
    if not reads and not writes:
        return  # of the host alone
    waits = _waits(func, args, kwargs)
    if schema.name == _MOVE and not fresh:  # to the host
        waits = not kwargs.get("non_blocking")
    elif not writes and not waits:
        return  # a view, or a question about shapes
    streams.work(f"torch's {schema.name.removeprefix('aten::')}", reads=reads, writes=writes, waits=waits)


def _waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for the stream.

    It does for copies between host and device that do not say ``non_blocking``; to host memory that may be pageable
    also for those, which CUDA completes before it returns. It does where the shape or the value of a result depends on
    data (``nonzero``, ``item``, an index that is a mask), and where an operand in host memory has to be moved first.
    """
    name = func._schema.name
    here = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and not hasattr(one, "host")]
    if name == _COPY:
        to_host = not hasattr(args[0], "host")
        later = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return bool(here) and (to_host or not later)
    if name == _MOVE:
        return bool(here) and not kwargs.get("non_blocking")
    if name in _INDEXED:
        indices = [one for one in tree_leaves(args[1]) if isinstance(one, torch.Tensor)]
        return any(index.dtype in _MASKS or (not hasattr(index, "host") and index.dim() > 0) for index in indices)
    if any(one.dim() for one in here):
        return True
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
