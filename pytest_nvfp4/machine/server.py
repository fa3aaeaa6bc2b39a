"""The table of requests: each is validated, executed on the machine's memory, observed and answered.

``Server.execute`` raises ``WireError`` for a request that no stand-in sends, which ends the job; any other exception is
the answer, which the kernel's process raises again at the line that made the request.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launch_queue import LaunchQueue
from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.driver.memory import DeviceMemory
from pytest_nvfp4.driver.streams import Caller, Extent, Streams
from pytest_nvfp4.driver.variables import Variables
from pytest_nvfp4.machine.blocks import Blocks
from pytest_nvfp4.machine.fields import HANDLE, Fields
from pytest_nvfp4.machine.host_reads import HostReads
from pytest_nvfp4.machine.modules import Modules
from pytest_nvfp4.machine.requests import Executed, Kind, NoObserver, Observer
from pytest_nvfp4.machine.torch_effects import extent
from pytest_nvfp4.machine.torch_requests import TorchRequests
from pytest_nvfp4.machine.values import Decoder, host_bytes
from pytest_nvfp4.machine.wire import Answer, Blob, Message, WireError

_MOST_GRAPHS: Final = 4096
_MOST_CAPTURED: Final = 1 << 20
_MOST_STREAMS: Final = 1 << 16
_MOST_SIZE: Final = 1 << 46


class Server:
    """Executes the requests of one kernel's process.

    Args:
        model: The device.
        memory: Allocator of its memory.
        streams: The order of its work.
        on_launch: Executes a launch.
        variables: Returns the memory of modules' variables; without it they have none.
        most: Limit on the bytes of all allocations together.

    Attributes:
        observer: Gets each executed request.
        reads: Records what the host reads, or replaces it by what it has read before; None for neither.
        operators: Executes operators of torch.
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
        variables: Variables = lambda _image, _fresh: {},
        most: int = _MOST_SIZE,
    ) -> None:
        self.observer: Observer = NoObserver()
        self.reads: HostReads | None = None
        self.stream = 0
        self.blocks = Blocks(memory, most=most)
        self.streams = streams
        self.operators = TorchRequests(self.blocks, streams, self._observed)
        self._on_launch = on_launch
        self._place_variables = variables
        self._queue = LaunchQueue(self._launched, streams)
        self._modules = Modules(model)
        self._graphs: dict[int, Any] = {}
        self._count = 0
        self._handles: set[int] = set()
        self._message: Message | None = None
        self._to_host = 0
        self._table: dict[str, Callable[[Fields], Answer]] = {
            "operator": self.operators.execute,
            "read": self._read,
            "allocate": self._allocate,
            "free": self._free,
            "copy": self._copy,
            "fill": self._fill,
            "launch": self._launch,
            "module": self._module,
            "variables": self._variables,
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
        self._message, self._to_host = message, 0
        try:
            for address, freed_at in fields.freed():
                self.streams.caller = Caller(thread, current, freed_at)
                self._release(address)
            self.streams.caller = Caller(thread, current, line)
            answer = handler(fields)
            return self.reads.answered(message, answer) if self.reads is not None and self._to_host else answer
        finally:
            self._message = None
            self.idle()

    # ---- memory --------------------------------------------------------------------------------------------------

    def _read(self, fields: Fields) -> Answer:
        tensor = Decoder((), self.blocks.tensor).decode({"tensor": fields.array("tensor")})
        if tensor.nbytes > self.operators.largest:
            raise MemoryError(f"a read of {tensor.nbytes} bytes; the limit is {self.operators.largest}")
        reads = (extent(tensor),) if tensor.numel() else ()
        self.streams.work("a read by the host", reads=reads, waits=True)
        shape, data = host_bytes(tensor)
        self._observe(Kind.READ, "a read by the host", reads=reads, to_host=len(data))
        return {"host": shape}, [data]

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
        if block is None or not block.owned or block.variable or self.blocks.kept(address):
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

    def _variables(self, fields: Fields) -> Answer:
        fresh = fields.flag("fresh")
        found = self._placed(fields.integer("module", HANDLE), fresh=fresh)
        if fresh:  # a module that was unloaded is loaded again
            self._observe(Kind.FILL, "the initial values of a module", writes=tuple(found.values()))
        return {"variables": {name: [where.address, where.size] for name, where in found.items()}}, []

    def _placed(self, module: int, *, fresh: bool = False) -> Mapping[str, Extent]:
        """Return the memory of a module's variables, which are blocks of the device from then on."""
        image = self._modules.with_variables(module)
        placed = {} if image is None else self._place_variables(image, fresh)
        for name, where in placed.items():
            self.blocks.adopt(where.address, where.size, variable=name)
        return placed

    def _launch(self, fields: Fields) -> Answer:
        module = fields.integer("module", HANDLE)
        launch = self._modules.launch(
            module,
            fields.text("kernel"),
            grid=fields.dim3("grid"),
            block=fields.dim3("block"),
            cluster=fields.dim3("cluster"),
            dynamic_smem=fields.integer("dynamic_smem", 1 << 32),
            stream=fields.integer("stream", HANDLE),
            attributes=fields.attributes(),
            params=[bytes(blob) for blob in fields.message.blobs],
        )
        self._placed(module)
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
    ) -> None:
        line = self.streams.caller.line if self.streams.caller is not None else None
        self._observed(
            Executed(
                kind,
                what,
                reads=tuple(reads),
                writes=tuple(writes),
                from_host=from_host,
                to_host=to_host,
                line=line,
                launch=launch,
                message=self._message,
            )
        )

    def _observed(self, request: Executed) -> None:
        self._to_host += request.to_host
        self.observer.executed(request)
