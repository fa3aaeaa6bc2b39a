"""The table of requests: each is validated, executed on the machine's memory, observed and answered.

``Server.execute`` raises ``WireError`` for a request that no stand-in sends, which ends the job; any other exception is
the answer, which the kernel's process raises again at the line that made the request.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launch_queue import LaunchQueue
from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.driver.memory import DeviceMemory
from pytest_nvfp4.driver.streams import Caller, Extent, Streams
from pytest_nvfp4.machine import operators
from pytest_nvfp4.machine.blocks import Block, Blocks
from pytest_nvfp4.machine.fields import HANDLE, Fields
from pytest_nvfp4.machine.modules import Modules
from pytest_nvfp4.machine.requests import Executed, Kind, NoObserver, Observer
from pytest_nvfp4.machine.torch_effects import effects, extent, report, reveals
from pytest_nvfp4.machine.values import Decoder, device_fields, host_bytes
from pytest_nvfp4.machine.wire import Blob, Message, WireError

_MOST_GRAPHS: Final = 4096
_MOST_CAPTURED: Final = 1 << 20
_MOST_STREAMS: Final = 1 << 16
_MOST_SIZE: Final = 1 << 46
_NUMBER_BYTES: Final = 8
"""Bytes that count as returned to the kernel's process with a number or a shape that depends on data."""

Answer = tuple[dict[str, Any], list[Blob]]


class Server:
    """Executes the requests of one kernel's process.

    Args:
        model: The device.
        memory: Allocator of its memory.
        streams: The order of its work.
        on_launch: Executes a launch.
        most: Limit on the bytes of all allocations together.

    Attributes:
        observer: Gets each executed request.
        largest: Largest number of bytes of a tensor that operators may read or write.
        stream: torch's current stream of the caller of the kernel, outside requests.
        blocks: The device memory.
        streams: The order of work.
    """

    def __init__(
        self,
        model: DeviceModel,
        memory: DeviceMemory,
        streams: Streams,
        on_launch: Callable[[Launch], None],
        *,
        most: int = _MOST_SIZE,
    ) -> None:
        self.observer: Observer = NoObserver()
        self.largest = operators.UNLIMITED
        self.stream = 0
        self.blocks = Blocks(memory, most=most)
        self.streams = streams
        self._on_launch = on_launch
        self._queue = LaunchQueue(self._launched, streams)
        self._modules = Modules(model)
        self._graphs: dict[int, Any] = {}
        self._count = 0
        self._handles: set[int] = set()
        self._message: Message | None = None
        self._table: dict[str, Callable[[Fields], Answer]] = {
            "operator": self._operator,
            "read": self._read,
            "allocate": self._allocate,
            "free": self._free,
            "copy": self._copy,
            "fill": self._fill,
            "launch": self._launch,
            "module": self._module,
            "stream": self._stream,
            "record": self._record,
            "wait": self._wait,
            "synchronize": self._synchronize,
            "record_stream": self._record_stream,
            "graph": self._graph,
        }
        self.idle()

    def idle(self) -> None:
        """Set the place of work that no request causes: the caller's, on its own stream."""
        self.streams.caller = Caller(thread=0, current=self.stream, line=None)

    def execute(self, message: Message) -> Answer:
        """Execute a request and return the fields and blobs of the answer. See the module for what it raises."""
        fields = Fields(message)
        handler = self._table.get(message.kind)
        if handler is None:
            raise WireError(f"there is no request {message.kind[:40]!r}")
        thread, current, line = fields.integer("thread", HANDLE), fields.integer("current", HANDLE), fields.line()
        if self.streams.captured is not None and len(self.streams.captured) >= _MOST_CAPTURED and fields.adds:
            raise HostSideError(f"a graph of more than {_MOST_CAPTURED} nodes")
        self._message = message
        try:
            for address, freed_at in fields.freed():
                self.streams.caller = Caller(thread, current, freed_at)
                self._release(address)
            self.streams.caller = Caller(thread, current, line)
            return handler(fields)
        finally:
            self._message = None
            self.idle()

    # ---- operators of torch --------------------------------------------------------------------------------------

    def _operator(self, fields: Fields) -> Answer:
        func = operators.operator(fields.text("name"), fields.text("overload"))
        decoder = Decoder(fields.message.blobs, self.blocks.tensor)
        args, kwargs = decoder.decode(fields.array("args")), fields.table("kwargs")
        kwargs = {name: decoder.decode(value) for name, value in kwargs.items()}
        args = _as_tuples(func, args)
        if not decoder.on_device and not any(map(operators.is_cuda, tree_leaves((args, kwargs)))):
            raise WireError(f"{func} concerns no device memory")
        state = fields.message.fields.get("generator")
        generator = None if state is None else decoder.decode({"generator": state})
        places: list[Block] = []

        def place(tensor: torch.Tensor, initialised: bool) -> torch.Tensor:
            size = _bytes(tensor)
            if not size:
                return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            block = self.blocks.allocate(size)
            places.append(block)
            self.streams.allocated(block.address, size, pooled=True)
            if initialised:
                ctypes.memmove(block.address, tensor.untyped_storage().data_ptr(), size)
            return self.blocks.tensor(
                block.address,
                str(tensor.dtype).removeprefix("torch."),
                list(tensor.size()),
                list(tensor.stride()),
                int(tensor.storage_offset()),
            )

        try:
            ran = operators.run(
                func,
                args,
                kwargs,
                on_device=decoder.on_device,
                place=place,
                generator=generator,
                most=self.largest,
            )
        except Exception:
            self._failed(func, args, kwargs, decoder, fields.message.blobs)
            raise
        if ran.effects is not None:
            report(self.streams, func, ran.effects)
        arguments = {id(tensor): at for at, tensor in enumerate(decoder.tensors)}
        new = {block.address: block.size for block in places}
        blobs: list[Blob] = []

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
            if self.blocks.at(description[0]) is None:  # without elements
                description[0], description[4] = 0, 0
            return {"tensor": description}

        result = encoded(ran.result)
        to_host = sum(len(blob) for blob in blobs)
        if decoder.on_device and reveals(func, args, kwargs, ran.result, on_device=decoder.on_device):
            to_host += _NUMBER_BYTES
        written = _written_hosts(func, args, kwargs, decoder)
        changed = []
        for at, tensor in written:
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
            done = ran.effects
            reads = done.reads if done is not None else self._operands(decoder) if to_host else ()
            self._observe(
                Kind.OPERATOR,
                f"torch's {func._schema.name.removeprefix('aten::')}",
                reads=reads,
                writes=done.writes if done is not None else (),
                from_host=[blob for blob in fields.message.blobs if len(blob)],
                to_host=to_host,
                operator=_effect(func),
            )
        return {"result": result, "changed": changed, "generator": after}, blobs

    def _failed(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], decoder: Decoder, blobs: Sequence[Blob]
    ) -> None:
        """Observe an operator that raised an error: it may have written, and its error may tell what it read."""
        done = effects(func, args, kwargs, on_device=decoder.on_device, fresh=())
        if decoder.on_device:
            self._observe(
                Kind.OPERATOR,
                f"torch's {func._schema.name.removeprefix('aten::')}",
                reads=self._operands(decoder),
                writes=done.writes if done is not None else (),
                from_host=[blob for blob in blobs if len(blob)],
                to_host=_NUMBER_BYTES,
                operator=_effect(func),
            )

    @staticmethod
    def _operands(decoder: Decoder) -> tuple[Extent, ...]:
        """Return the extents of the device tensors among an operator's arguments."""
        return tuple(extent(tensor) for tensor in decoder.tensors if id(tensor) in decoder.on_device and tensor.numel())

    def _read(self, fields: Fields) -> Answer:
        tensor = Decoder((), self.blocks.tensor).decode({"tensor": fields.array("tensor")})
        if tensor.nbytes > self.largest:
            raise MemoryError(f"a read of {tensor.nbytes} bytes; the limit is {self.largest}")
        reads = (extent(tensor),) if tensor.numel() else ()
        self.streams.work("a read by the host", reads=reads, waits=True)
        shape, data = host_bytes(tensor)
        self._observe(Kind.READ, "a read by the host", reads=reads, to_host=len(data))
        return {"host": shape}, [data]

    # ---- memory --------------------------------------------------------------------------------------------------

    def _allocate(self, fields: Fields) -> Answer:
        size, stream = fields.integer("size", _MOST_SIZE), fields.optional("stream")
        block = self.blocks.allocate(size)
        self.streams.allocated(block.address, size, stream=stream)
        self._observe(Kind.ALLOCATE, "an allocation", writes=(Extent(block.address, size),))
        return {"address": block.address}, []

    def _free(self, fields: Fields) -> Answer:
        address, stream = fields.integer("address", HANDLE), fields.optional("stream")
        self._release(address, stream=stream, pooled=False)
        return {}, []

    def _release(self, address: int, *, stream: int | None = None, pooled: bool = True) -> None:
        block = self.blocks.at(address)
        if block is None or not block.owned or self.blocks.kept(address):
            self.blocks.free(address)  # raises, or does nothing
            return
        self.streams.freed(address, stream=stream, pooled=pooled)
        self.blocks.free(address)
        self._observe(Kind.FREE, "a free", writes=(Extent(address, block.size),))

    def _copy(self, fields: Fields) -> Answer:
        what, size, stream = fields.text("what"), fields.integer("size", _MOST_SIZE), fields.integer("stream", HANDLE)
        to, source, waits = fields.optional("to"), fields.optional("source"), fields.flag("waits")
        if to is None and source is None:
            raise WireError("a copy between two places of host memory")
        data: Blob = b""
        if source is None:
            data = fields.only_blob()
            if len(data) != size:
                raise WireError(f"a copy of {size} bytes brings {len(data)}")
        else:
            self.blocks.within(source, size, what=what)
        if to is not None:
            self.blocks.within(to, size, what=what)
        reads = (Extent(source, size),) if source is not None and size else ()
        writes = (Extent(to, size),) if to is not None and size else ()
        self.streams.work(
            what, stream=stream, reads=reads, writes=writes, waits=to is None or (waits and source is None)
        )
        blobs: list[Blob] = []
        if to is None:
            assert source is not None
            blobs.append(ctypes.string_at(source, size) if size else b"")
        elif source is None:
            ctypes.memmove(to, bytes(data), size)
        else:
            ctypes.memmove(to, source, size)
        sent = [data] if source is None else []
        self._observe(Kind.COPY, what, reads=reads, writes=writes, from_host=sent, to_host=size if to is None else 0)
        return {}, blobs

    def _fill(self, fields: Fields) -> Answer:
        what, to, count = fields.text("what"), fields.integer("to", HANDLE), fields.integer("count", _MOST_SIZE)
        pattern, stream = bytes(fields.only_blob()), fields.integer("stream", HANDLE)
        if not 1 <= len(pattern) <= 16:
            raise WireError(f"a fill with a pattern of {len(pattern)} bytes")
        size = len(pattern) * count
        self.blocks.within(to, size, what=what)
        writes = (Extent(to, size),)
        self.streams.work(what, stream=stream, writes=writes)
        if len(pattern) == 1:
            ctypes.memset(to, pattern[0], size)
        else:
            ctypes.memmove(to, pattern * count, size)
        self._observe(Kind.FILL, what, writes=writes, from_host=[pattern])
        return {}, []

    # ---- launches ------------------------------------------------------------------------------------------------

    def _module(self, fields: Fields) -> Answer:
        if len(fields.message.blobs) != 2:
            raise WireError("a module is a CUBIN and a PTX text")
        cubin, ptx = fields.message.blobs
        return {"module": self._modules.add(bytes(cubin), bytes(ptx) if fields.flag("has_ptx") else None)}, []

    def _launch(self, fields: Fields) -> Answer:
        launch = self._modules.launch(
            fields.integer("module", HANDLE),
            fields.text("kernel"),
            grid=fields.dim3("grid"),
            block=fields.dim3("block"),
            cluster=fields.dim3("cluster"),
            dynamic_smem=fields.integer("dynamic_smem", 1 << 32),
            stream=fields.integer("stream", HANDLE),
            attributes=fields.attributes(),
            params=[bytes(blob) for blob in fields.message.blobs],
        )
        self._queue(launch)
        return {}, []

    def _launched(self, launch: Launch) -> None:
        """Execute a launch, directly or in the replay of a graph."""
        try:
            self._on_launch(launch)
        finally:
            self._observe(Kind.LAUNCH, launch.kernel, from_host=launch.params, launch=launch)

    # ---- streams and graphs --------------------------------------------------------------------------------------

    def _stream(self, fields: Fields) -> Answer:
        handle = fields.integer("handle", HANDLE)
        self._handles.add(handle)
        if len(self._handles) > _MOST_STREAMS:
            raise HostSideError(f"more than {_MOST_STREAMS} streams and events")
        self.streams.add(handle, blocking=fields.flag("blocking"))
        return {}, []

    def _record(self, fields: Fields) -> Answer:
        event = fields.integer("event", HANDLE)
        self._handles.add(event)
        if len(self._handles) > _MOST_STREAMS:
            raise HostSideError(f"more than {_MOST_STREAMS} streams and events")
        self.streams.record(event, fields.optional("stream"))
        return {}, []

    def _wait(self, fields: Fields) -> Answer:
        self.streams.wait(fields.integer("event", HANDLE), fields.optional("stream"))
        return {}, []

    def _synchronize(self, fields: Fields) -> Answer:
        event, stream = fields.optional("event"), fields.optional("stream")
        if event is not None:
            self.streams.synchronize_event(event)
        elif stream is not None:
            self.streams.synchronize(stream)
        else:
            self.streams.synchronize_device()
        return {}, []

    def _record_stream(self, fields: Fields) -> Answer:
        self.streams.record_stream(fields.integer("address", HANDLE), fields.integer("stream", HANDLE))
        return {}, []

    def _graph(self, fields: Fields) -> Answer:
        act, number = fields.text("act"), fields.optional("graph")
        if act == "begin":
            self._queue.begin()
        elif act == "end":
            captured = self._queue.end()
            self._count += 1
            self._graphs[self._count] = captured
            if len(self._graphs) > _MOST_GRAPHS:
                raise HostSideError(f"more than {_MOST_GRAPHS} CUDA graphs")
            return {"graph": self._count}, []
        elif act == "drop":
            self._graphs.pop(number or 0, None)
        elif act == "replay" and number in self._graphs:
            self._queue.replay(self._graphs[number])
        else:
            raise WireError(f"there is no graph {number} to {act[:20]!r}")
        return {}, []

    def _observe(
        self,
        kind: Kind,
        what: str,
        *,
        reads: Sequence[Extent] = (),
        writes: Sequence[Extent] = (),
        from_host: Sequence[Any] = (),
        to_host: int = 0,
        launch: Launch | None = None,
        operator: str = "",
    ) -> None:
        caller = self.streams.caller
        self.observer.executed(
            Executed(
                kind,
                what,
                tuple(reads),
                tuple(writes),
                from_host,
                to_host,
                caller.line if caller is not None else None,
                launch,
                operator,
                self._message,
            )
        )


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the storage of a new tensor, which a tensor on the meta device only computes."""
    return int(tensor.untyped_storage().nbytes())


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


def _effect(func: Any) -> str:
    """Return the name of an operator for ``Executed.operator``."""
    overload = func._overloadname.removesuffix("_out")
    return f"{func._schema.name}.{overload}" if "reduce" in overload else str(func._schema.name)


def _as_tuples(func: Any, args: Any) -> tuple[Any, ...]:
    """Return the arguments of an operator; there may be fewer, not more, than it has."""
    if len(args) > len(func._schema.arguments):
        raise WireError(f"{func._schema.name} has {len(func._schema.arguments)} arguments, and {len(args)} came")
    return tuple(args)
