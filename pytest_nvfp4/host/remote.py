"""The device of a kernel's process: requests over a socket to the process that has the memory and the simulator.

Device addresses lie in address space that is reserved in both processes and has memory only in the other one, so that
host code that dereferences a device pointer ends with a segmentation fault, as on a GPU.

Each request carries the thread, torch's current stream there, and the user's line. Tensors that were dropped are named
with the next request, because a finaliser may run inside any other call, one of this module included.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch

from pytest_nvfp4.driver.launch_queue import Captured, LaunchQueue
from pytest_nvfp4.driver.launches import HostSideError, Launch, LaunchRejectedError, ModuleImage
from pytest_nvfp4.driver.streams import LEGACY, Extent, Streams
from pytest_nvfp4.driver.user_line import UserLine, user_line
from pytest_nvfp4.host.device_side import DeviceSide, HeldMemory, over
from pytest_nvfp4.machine.blocks import DTYPES
from pytest_nvfp4.machine.operators import is_random
from pytest_nvfp4.machine.values import Encoder, device_fields, host_tensor, write_bytes
from pytest_nvfp4.machine.wire import Blob, Channel, HungUpError, Message, WireError

_SCALARS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
}


class Requests:
    """Sends requests to the device, from any thread, and returns the answers.

    Args:
        channel: The connection.
        room: The reserved address space of the device.
        errors: Makes exceptions of the types, by name, that this layer does not know.
    """

    def __init__(
        self, channel: Channel, room: tuple[int, int], errors: Mapping[str, Callable[[str], Exception]] | None = None
    ) -> None:
        self._channel = channel
        self._room = room
        self._errors = errors or {}
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self._dropped: deque[tuple[int, UserLine | None]] = deque()
        self._threads = threading.local()

    @property
    def current(self) -> int:
        """Handle of torch's current stream in this thread."""
        return getattr(self._threads, "current", LEGACY)

    @current.setter
    def current(self, handle: int) -> None:
        self._threads.current = handle

    def is_device(self, address: int) -> bool:
        """Return whether an address is one of device memory."""
        return self._room[0] <= address < self._room[1]

    def drop(self, address: int) -> None:
        """Free the block of a tensor that nothing refers to any more; callable inside any other call."""
        self._dropped.append((address, user_line()))

    def send(self, kind: str, fields: Mapping[str, Any] | None = None, blobs: Sequence[Blob] = ()) -> Message:
        """Send a request and return its answer.

        Raises:
            Exception: what the device raised.
            HostSideError: this process was forked from the one that has the device, or the request was interrupted.
        """
        if os.getpid() != self._process:
            raise HostSideError("a forked process cannot use the device of its parent (CUDA does not survive a fork)")
        line = _line(user_line())
        with self._lock:
            if self._busy:
                raise HostSideError("a request to the device was interrupted by another one of the same thread")
            self._busy = True
            common: dict[str, Any] = {"thread": threading.get_ident(), "current": self.current, "line": line}
            if self._dropped:
                common["freed"] = [[address, _line(at)] for address, at in self._taken()]
            try:
                self._channel.send(kind, {**(fields or {}), **common}, blobs)
                answer = self._channel.receive()
            except HungUpError:
                os._exit(1)  # the device's process ends this one, too
            except WireError as error:  # it was too large, and nothing was sent
                self._busy = False
                raise HostSideError(str(error)) from None
            self._busy = False  # stays True if an exception of a signal's handler has left half a frame behind
        if answer.kind == "error":
            raise self._error(str(answer.fields.get("type")), str(answer.fields.get("text")))
        return answer

    def _taken(self) -> list[tuple[int, UserLine | None]]:
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def _error(self, name: str, text: str) -> Exception:
        if (make := self._errors.get(name)) is not None:
            return make(text)
        kind = {"HostSideError": HostSideError, "LaunchRejectedError": LaunchRejectedError}.get(name)
        kind = kind or getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(text)
        return RuntimeError(text)


def _line(line: UserLine | None) -> list[Any] | None:
    return None if line is None else [line.file, line.line, line.function, _line(line.caller)]


class RemoteWork:
    """Implements ``DeviceWork`` by requests; copies inside host memory are this process's own."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def allocate(self, size: int, stream: int | None = None) -> int:
        """See ``DeviceWork``."""
        return int(self._requests.send("allocate", {"size": size, "stream": stream}).fields["address"])

    def free(self, address: int, stream: int | None = None) -> None:
        """See ``DeviceWork``."""
        if address:
            self._requests.send("free", {"address": address, "stream": stream})

    def copy(self, to: int, source: int, size: int, *, what: str, stream: int, waits: bool) -> None:
        """See ``DeviceWork``."""
        to_device, from_device = self._requests.is_device(to), self._requests.is_device(source)
        if not to_device and not from_device:
            ctypes.memmove(to, source, size)
            return
        fields = {
            "what": what,
            "to": to if to_device else None,
            "source": source if from_device else None,
            "size": size,
            "stream": stream,
            "waits": waits,
        }
        sent = [] if from_device else [(ctypes.c_char * size).from_address(source)]
        answer = self._requests.send("copy", fields, [memoryview(data).cast("B") for data in sent])
        if not to_device:
            (data,) = answer.blobs
            ctypes.memmove(to, (ctypes.c_char * len(data)).from_buffer(data), len(data))

    def fill(self, to: int, pattern: bytes, count: int, *, what: str, stream: int) -> None:
        """See ``DeviceWork``."""
        self._requests.send("fill", {"what": what, "to": to, "count": count, "stream": stream}, [pattern])


class RemoteStreams(Streams):
    """The device's streams, by requests."""

    def __init__(self, requests: Requests) -> None:
        super().__init__()
        self._requests = requests

    @property
    def current(self) -> int:
        """See ``Streams``."""
        return self._requests.current

    @current.setter
    def current(self, handle: int) -> None:
        self._requests.current = handle

    def add(self, handle: int, *, blocking: bool) -> int:
        """See ``Streams``."""
        self._requests.send("stream", {"handle": handle, "blocking": blocking})
        return handle

    def record(self, event: int, stream: int | None = None) -> None:
        """See ``Streams``."""
        self._requests.send("record", {"event": event, "stream": stream})

    def wait(self, event: int, stream: int | None = None) -> None:
        """See ``Streams``."""
        self._requests.send("wait", {"event": event, "stream": stream})

    def synchronize(self, stream: int) -> None:
        """See ``Streams``."""
        self._requests.send("synchronize", {"stream": stream})

    def synchronize_event(self, event: int) -> None:
        """See ``Streams``."""
        self._requests.send("synchronize", {"event": event})

    def synchronize_device(self) -> None:
        """See ``Streams``."""
        self._requests.send("synchronize")

    def record_stream(self, address: int, stream: int) -> None:
        """See ``Streams``."""
        self._requests.send("record_stream", {"address": address, "stream": stream})


class RemoteLaunches(LaunchQueue):
    """Launches and CUDA graphs, by requests. A module is sent once."""

    def __init__(self, requests: Requests, streams: Streams) -> None:
        super().__init__(self._launch, streams)
        self._requests = requests
        self._modules: dict[int, tuple[object, int]] = {}
        self._capturing = False

    @property
    def capturing(self) -> bool:
        """See ``LaunchQueue``."""
        return self._capturing

    def __call__(self, launch: Launch) -> None:
        """See ``LaunchQueue``."""
        self._launch(launch)

    def _launch(self, launch: Launch) -> None:
        fields = {
            "module": self._module(launch.module),
            "kernel": launch.kernel,
            "grid": launch.grid,
            "block": launch.block,
            "cluster": launch.cluster,
            "dynamic_smem": launch.dynamic_smem,
            "stream": launch.stream,
            "attributes": [[number, value.hex()] for number, value in launch.attributes.items()],
        }
        self._requests.send("launch", fields, launch.params)

    def variables(self, image: ModuleImage, *, fresh: bool = False) -> Mapping[str, Extent]:
        """See ``LaunchQueue``."""
        answer = self._requests.send("variables", {"module": self._module(image), "fresh": fresh})
        return {name: Extent(address, size) for name, (address, size) in answer.fields["variables"].items()}

    def _module(self, image: ModuleImage) -> int:
        if id(image) not in self._modules:
            ptx = None if image.ptx is None else image.ptx.encode()
            answer = self._requests.send("module", {"has_ptx": ptx is not None}, [image.cubin, ptx or b""])
            self._modules[id(image)] = image, int(answer.fields["module"])  # the reference keeps the identity unique
        return self._modules[id(image)][1]

    def begin(self) -> None:
        """See ``LaunchQueue``."""
        self._requests.send("graph", {"act": "begin"})
        self._capturing = True

    def end(self) -> Captured:
        """See ``LaunchQueue``."""
        self._capturing = False
        number = int(self._requests.send("graph", {"act": "end"}).fields["graph"])
        return (lambda: self._replay(number),)

    def replay(self, captured: Captured) -> None:
        """See ``LaunchQueue``."""
        for act in captured:
            act()

    def _replay(self, number: int) -> None:
        self._requests.send("graph", {"act": "replay", "graph": number})


class RemoteOperators:
    """Implements ``DeviceOperators`` by requests."""

    def __init__(self, requests: Requests) -> None:
        self.held = HeldMemory()
        self._requests = requests

    def run(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        on_device: Collection[int],
        generator: torch.Generator | None,
    ) -> tuple[Any, bool]:
        """See ``DeviceOperators``."""
        name = func._schema.name
        encoder = Encoder(lambda tensor: id(tensor) in on_device)
        try:
            first = [
                encoder.encode(value, written=name == "aten::copy_" and not position)
                for position, value in enumerate(args)
            ]
            named = {key: encoder.encode(value) for key, value in kwargs.items()}
            drawn = (generator or torch.default_generator) if is_random(func, kwargs) else None
            state = None if drawn is None else encoder.encode(drawn)["generator"]
        except WireError as error:
            raise HostSideError(f"{name}: {error}") from None
        fields = {
            "name": name,
            "overload": "" if func._overloadname == "default" else func._overloadname,
            "args": first,
            "kwargs": named,
            "generator": state,
        }
        answer = self._requests.send("operator", fields, encoder.blobs)
        for number, blob in answer.fields["changed"]:
            _overwrite(encoder.hosts[number], answer.blobs[blob])
        if (after := answer.fields["generator"]) is not None:
            own = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)), drawn)
            if own is not None:
                own.set_state(host_tensor(["uint8", [len(answer.blobs[after])], [1]], answer.blobs[after]))
        return self._result(answer, encoder, several=len(func._schema.returns) > 1)

    def _result(self, answer: Message, encoder: Encoder, *, several: bool) -> tuple[Any, bool]:
        value, on_device = answer.fields["result"], False

        def made(one: Any) -> Any:
            nonlocal on_device
            if isinstance(one, list):
                return list(map(made, one))
            if not isinstance(one, dict):
                return one
            ((kind, content),) = one.items()
            if kind in _SCALARS:
                return _SCALARS[kind](content)
            if kind == "argument":
                return encoder.tensors[content]
            if kind == "host":
                return host_tensor(content[:3], answer.blobs[content[3]])
            on_device = True
            return self._new(content) if kind == "new" else _view(content, encoder)

        result = made(value)
        return tuple(result) if several else result, on_device

    def _new(self, fields: Any) -> torch.Tensor:
        *shape, size = fields
        return block(shape, size, release=self.held.hold(size, lambda: self._requests.drop(shape[0])))

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``DeviceOperators``."""
        answer = self._requests.send("read", {"tensor": device_fields(tensor)})
        return host_tensor(answer.fields["host"], answer.blobs[0])


def block(fields: Any, size: int, *, release: Callable[[], None] | None = None) -> torch.Tensor:
    """Return a tensor over a block of ``size`` bytes, from its description (``values.device_fields``)."""
    base, dtype, sizes, strides, offset = fields
    return over(base, size, dtype=DTYPES[dtype], sizes=sizes, strides=strides, offset=offset, release=release)


def _view(fields: Any, encoder: Encoder) -> torch.Tensor:
    """Return a tensor over the block of one of the arguments."""
    base, dtype, sizes, strides, offset = fields
    if not base:
        return torch.empty_strided(sizes, strides, dtype=DTYPES[dtype], device="cpu")
    for tensor in encoder.tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() == base:
            set_: Any = torch.empty(0, dtype=DTYPES[dtype], device="cpu").set_
            return set_(storage, offset, tuple(sizes), tuple(strides))  # type: ignore[no-any-return]
    raise HostSideError("an operator returned a view of none of its arguments")


def _overwrite(tensor: torch.Tensor, data: Blob) -> None:
    """Write what an operator has written to a CPU tensor."""
    new = torch.empty_like(tensor, device="cpu", requires_grad=False)
    write_bytes(new, data)
    with torch.no_grad():
        tensor.copy_(new)


def remote(requests: Requests) -> DeviceSide:
    """Return the device behind a connection."""
    streams = RemoteStreams(requests)
    return DeviceSide(RemoteWork(requests), streams, RemoteLaunches(requests, streams), RemoteOperators(requests))
