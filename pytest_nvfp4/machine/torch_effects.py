"""Effects of torch's operators on the device: the bytes they read and write, and whether the host waits for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from pytest_nvfp4.driver.streams import Extent, Streams

_COPY: Final = "aten::copy_"
_MOVE: Final = "aten::_to_copy"
_INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
_MASKS: Final = frozenset({torch.bool, torch.uint8})
_SELECTING: Final = frozenset({"index", "indices", "mask", "condition", "repeats"})
"""Names of arguments that select places or counts; of a shift, it is the last one."""


class Effects(NamedTuple):
    """What an operator does on the device.

    Attributes:
        reads: Device memory that it reads.
        writes: Device memory that it writes.
        waits: Whether the host waits for its stream.
        selects: How many of the last of ``reads`` select places or counts: indices, masks, repeats, shifts.
        converts: Whether what it writes has another format than the other operands, beside the width of integers.
    """

    reads: tuple[Extent, ...]
    writes: tuple[Extent, ...]
    waits: bool
    selects: int = 0
    converts: bool = False


def extent(tensor: torch.Tensor) -> Extent:
    """Return the bytes of a tensor over device memory."""
    size = tensor.element_size()
    return Extent(tensor.data_ptr(), size, tuple(tensor.shape), tuple(step * size for step in tensor.stride()))


def effects(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    on_device: Collection[int],
    fresh: Sequence[torch.Tensor],
) -> Effects | None:
    """Return the effects of an operator; None if it does nothing on the device (a view, a query of the shape).

    Args:
        func: The operator.
        args, kwargs: Its arguments, with tensors over device memory in place of device tensors.
        on_device: Identities of those.
        fresh: Those of its results that are new and initialised.
    """
    reads: list[torch.Tensor] = []
    selecting: list[torch.Tensor] = []
    writes = list(fresh)
    schema = func._schema
    for position, argument in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        selects = argument.name in _SELECTING or ("shift" in schema.name and position == 1)
        into = writes if written else selecting if selects else reads
        into.extend(leaf for leaf in tree_leaves(value) if id(leaf) in on_device)
    if not reads and not selecting and not writes:
        return None  # an operator on host tensors only
    waits = _waits(func, args, kwargs, on_device)
    if schema.name == _MOVE and not fresh:  # to the host
        waits = not kwargs.get("non_blocking")
    elif not writes and not waits:
        return None
    converts = any(_converts(source.dtype, target.dtype) for source in reads for target in writes)
    all_reads = tuple(map(extent, [*reads, *selecting]))
    return Effects(all_reads, tuple(map(extent, writes)), waits, len(selecting), converts)


def report(streams: Streams, func: Any, done: Effects) -> None:
    """Report an executed operator to ``streams``."""
    name = func._schema.name.removeprefix("aten::")
    streams.work(f"torch's {name}", reads=done.reads, writes=done.writes, waits=done.waits)


def reveals(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, *, on_device: Collection[int]) -> bool:
    """Return whether a result of an operator on the device tells the host of data: a number, or a shape."""
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return True
    if any(not isinstance(leaf, torch.Tensor) and leaf is not None for leaf in tree_leaves(result)):
        return True
    if func._schema.name not in _INDEXED:
        return False
    indices = [leaf for leaf in tree_leaves(args[1] if len(args) > 1 else kwargs) if isinstance(leaf, torch.Tensor)]
    return any(index.dtype in _MASKS and id(index) in on_device for index in indices)


def _converts(source: torch.dtype, target: torch.dtype) -> bool:
    """Return whether a cast changes more than the width of an integer, whose bits it moves."""
    if source == target:
        return False
    fractional = (source.is_floating_point or source.is_complex), (target.is_floating_point or target.is_complex)
    return any(fractional) or target == torch.bool


def _waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any], on_device: Collection[int]) -> bool:
    """Return whether the host waits for the stream.

    It waits for copies between host and device without ``non_blocking``; for copies to host memory always, because
    CUDA completes those to pageable memory before it returns (CUDA runtime API, "API synchronization behavior"). It
    also waits if the shape or the value of a result depends on data (``nonzero``, ``item``, an index that is a mask),
    or if an operand in host memory must be moved first.
    """
    name = func._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_host = [tensor for tensor in tensors if id(tensor) not in on_device]
    if name == _COPY:
        to_host = id(args[0]) not in on_device
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return bool(on_host) and (to_host or not non_blocking)
    if name == _MOVE:
        return bool(on_host) and not kwargs.get("non_blocking")
    if name in _INDEXED:
        indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor)]
        return any(index.dtype in _MASKS or (id(index) not in on_device and index.dim() > 0) for index in indices)
    if any(tensor.dim() for tensor in on_host):
        return True
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
