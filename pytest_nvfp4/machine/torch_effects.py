"""Effects of torch's operators on the device: the bytes they read and write, and whether the host waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from pytest_nvfp4.driver.streams import Extent, Streams

_COPY: Final = "aten::copy_"
_MOVE: Final = "aten::_to_copy"
_INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
_MASKS: Final = frozenset({torch.bool, torch.uint8})


def extent(tensor: torch.Tensor) -> Extent:
    """Return the bytes of a tensor in host memory."""
    size = tensor.element_size()
    return Extent(tensor.data_ptr(), size, tuple(tensor.shape), tuple(step * size for step in tensor.stride()))


def report(
    streams: Streams, func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, fresh: Sequence[torch.Tensor]
) -> None:
    """Report an executed operator to ``streams``.

    Args:
        streams: Receives the report.
        func: The operator.
        args, kwargs: Its arguments, with device tensors.
        fresh: The host tensors behind those of its results that are new and initialised.
    """
    reads: list[Extent] = []
    writes = [extent(tensor) for tensor in fresh]
    schema = func._schema
    for position, argument in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if written else reads).extend(extent(leaf.host) for leaf in tree_leaves(value) if hasattr(leaf, "host"))
    if not reads and not writes:
        return  # an operator on host tensors only
    waits = _waits(func, args, kwargs)
    if schema.name == _MOVE and not fresh:  # to the host
        waits = not kwargs.get("non_blocking")
    elif not writes and not waits:
        return  # a view or a query of the shape
    streams.work(f"torch's {schema.name.removeprefix('aten::')}", reads=reads, writes=writes, waits=waits)


def _waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether the host waits for the stream.

    It waits for copies between host and device without ``non_blocking``; for copies to host memory always, because
    CUDA completes those to pageable memory before it returns (CUDA runtime API, "API synchronization behavior"). It
    also waits if the shape or the value of a result depends on data (``nonzero``, ``item``, an index that is a mask),
    or if an operand in host memory must be moved first.
    """
    name = func._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_host = [tensor for tensor in tensors if not hasattr(tensor, "host")]
    if name == _COPY:
        to_host = not hasattr(args[0], "host")
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return bool(on_host) and (to_host or not non_blocking)
    if name == _MOVE:
        return bool(on_host) and not kwargs.get("non_blocking")
    if name in _INDEXED:
        indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor)]
        return any(index.dtype in _MASKS or (not hasattr(index, "host") and index.dim() > 0) for index in indices)
    if any(tensor.dim() for tensor in on_host):
        return True
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
