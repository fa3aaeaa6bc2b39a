"""Requests of torch's operators: decoded, executed on device memory, observed and answered."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.machine import operators
from pytest_nvfp4.machine.blocks import Block, Blocks
from pytest_nvfp4.machine.fields import Fields
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.machine.torch_effects import Effects, effects, extent, report, reveals
from pytest_nvfp4.machine.values import Decoder, device_fields, host_bytes
from pytest_nvfp4.machine.wire import Answer, Blob, WireError

_NUMBER_BYTES: Final = 8
"""Bytes that count as returned to the kernel's process with a number or a shape that depends on data."""


class TorchRequests:
    """Executes the operators of torch that one kernel's process requests.

    Args:
        blocks: The device memory.
        streams: The order of its work.
        observe: Gets each executed request.

    Attributes:
        largest: Largest number of bytes of a tensor that they may read or write.
    """

    def __init__(self, blocks: Blocks, streams: Streams, observe: Callable[[Executed], None]) -> None:
        self.largest = operators.UNLIMITED
        self._blocks = blocks
        self._streams = streams
        self._observe = observe

    def execute(self, fields: Fields) -> Answer:
        """Execute a request, and return its answer. Raises WireError: no stand-in sends it."""
        func = operators.operator(fields.text("name"), fields.text("overload"))
        decoder = Decoder(fields.message.blobs, self._blocks.tensor)
        args, kwargs = decoder.decode(fields.array("args")), fields.table("kwargs")
        kwargs = {name: decoder.decode(value) for name, value in kwargs.items()}
        args = _as_tuples(func, args)
        if not decoder.on_device and not any(map(operators.is_cuda, tree_leaves((args, kwargs)))):
            raise WireError(f"{func} concerns no device memory")
        state = fields.message.fields.get("generator")
        generator = None if state is None else decoder.decode({"generator": state})
        places: list[Block] = []
        try:
            ran = operators.run(
                func,
                args,
                kwargs,
                on_device=decoder.on_device,
                place=lambda tensor, initialised: self._place(tensor, places, initialised=initialised),
                generator=generator,
                most=self.largest,
            )
        except Exception:
            if decoder.on_device:  # it may have written, and its error may tell what it read
                done = effects(func, args, kwargs, on_device=decoder.on_device, fresh=())
                known = done._replace(reads=(*done.writes, *done.reads)) if done is not None else _asked(decoder)
                self._executed(fields, func, known, to_host=_NUMBER_BYTES)
            raise
        if ran.effects is not None:
            report(self._streams, func, ran.effects)
        blobs: list[Blob] = []
        result = self._encoded(ran, decoder, places, blobs)
        to_host = sum(len(blob) for blob in blobs)
        if decoder.on_device and reveals(func, args, kwargs, ran.result, on_device=decoder.on_device):
            to_host += _NUMBER_BYTES
        changed = []
        for at, tensor in _written_hosts(func, args, kwargs, decoder):
            changed.append([at, len(blobs)])
            blobs.append(host_bytes(tensor)[1])
            to_host += tensor.nbytes
        after = None
        if generator is not None or decoder.generators:
            after = len(blobs)
            blobs.append(host_bytes(decoder.generators[-1].get_state())[1])
            # How many numbers are drawn may depend on data, as in ``poisson``.
            to_host += _NUMBER_BYTES if decoder.on_device else 0
        if ran.effects is not None or places or to_host:
            nothing = _asked(decoder) if to_host else Effects((), (), waits=False)
            self._executed(fields, func, ran.effects or nothing, to_host=to_host)
        return {"result": result, "changed": changed, "generator": after}, blobs

    def _place(self, tensor: torch.Tensor, places: list[Block], *, initialised: bool) -> torch.Tensor:
        """Return a new result in device memory, whose block is added to ``places``."""
        size = int(tensor.untyped_storage().nbytes())  # a tensor on the meta device only computes it
        if not size:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        block = self._blocks.allocate(size)
        places.append(block)
        self._streams.allocated(block.address, size, pooled=True)
        if initialised and tensor.is_meta:
            self._blocks.zero(block.address)
        elif initialised:
            ctypes.memmove(block.address, tensor.untyped_storage().data_ptr(), size)
        return self._blocks.tensor(
            block.address,
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.size()),
            list(tensor.stride()),
            int(tensor.storage_offset()),
        )

    def _encoded(self, ran: operators.Ran, decoder: Decoder, places: Sequence[Block], blobs: list[Blob]) -> Any:
        """Return a result as JSON; the bytes of tensors in host memory are added to ``blobs``."""
        arguments = {id(tensor): at for at, tensor in enumerate(decoder.tensors)}
        new = {block.address: block.size for block in places}

        def encoded(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [encoded(each) for each in value]
            if not isinstance(value, torch.Tensor):
                return _number(value)
            if id(value) in arguments:
                return {"argument": arguments[id(value)]}
            if not ran.on_device:
                shape, data = host_bytes(value)
                blobs.append(data)
                return {"host": [*shape, len(blobs) - 1]}
            description = device_fields(value)
            if value.untyped_storage().nbytes() and (size := new.get(description[0])) is not None:
                return {"new": [*description, size]}
            if self._blocks.at(description[0]) is None:  # without elements
                description[0], description[4] = 0, 0
            return {"tensor": description}

        return encoded(ran.result)

    def _executed(self, fields: Fields, func: Any, done: Effects, *, to_host: int) -> None:
        overload = func._overloadname.removesuffix("_out")
        name = str(func._schema.name)
        caller = self._streams.caller
        self._observe(
            Executed(
                Kind.OPERATOR,
                f"torch's {name.removeprefix('aten::')}",
                reads=done.reads,
                selects=done.selects,
                writes=done.writes,
                from_host=[bytes(blob) for blob in fields.message.blobs if len(blob)],
                to_host=to_host,
                line=caller.line if caller is not None else None,
                operator=f"{name}.{overload}" if "reduce" in overload else name,
                converts=done.converts,
                message=fields.message,
            )
        )


def _asked(decoder: Decoder) -> Effects:
    """Return the effects of an operator that only gives its operands to the host."""
    operands = (tensor for tensor in decoder.tensors if id(tensor) in decoder.on_device and tensor.numel())
    return Effects(tuple(map(extent, operands)), (), waits=True)


def _number(value: Any) -> Any:
    """Return a scalar result as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    raise HostSideError(f"a result of type {type(value).__name__} has no stand-in without a GPU")


def _written_hosts(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], decoder: Decoder
) -> list[tuple[int, torch.Tensor]]:
    """Return the CPU tensors that an operator has written, with their numbers."""
    numbers = {id(tensor): at for at, tensor in enumerate(decoder.hosts)}
    found: list[tuple[int, torch.Tensor]] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)

        def add(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in numbers:
                found.append((numbers[id(tensor)], tensor))
            return tensor

        tree_map_only(torch.Tensor, add, value)
    return found


def _as_tuples(func: Any, args: Any) -> tuple[Any, ...]:
    """Return the arguments of an operator; there may be fewer, not more, than it has."""
    if len(args) > len(func._schema.arguments):
        raise WireError(f"{func._schema.name} has {len(func._schema.arguments)} arguments, and {len(args)} came")
    return tuple(args)
