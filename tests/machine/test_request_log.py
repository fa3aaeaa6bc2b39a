"""The requests of a call, executed again on other memory; and operators that tell of what they read."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch")

from pytest_nvfp4.driver.device_model import B200
from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.driver.variables import UnreadVariables
from pytest_nvfp4.machine import request_log
from pytest_nvfp4.machine.request_log import Observers, RequestLog
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.machine.server import Server
from pytest_nvfp4.machine.wire import Message
from pytest_nvfp4.sim.memory.globals import GlobalMemory
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory

HTOD = {"what": "cuMemcpyHtoD", "stream": 0, "source": None, "waits": True}
DTOD = {"what": "cuMemcpyDtoD", "stream": 0, "waits": True}


COUNTS = """.version 9.0
.target sm_100a
.address_size 64
.visible .global .align 4 .u32 calls;
.visible .entry count() { ret; }
"""


@dataclass
class Device:
    """A server whose requests are logged, and every executed one. A launch increments the variable of its module."""

    regions: GlobalMemory = field(default_factory=GlobalMemory)
    seen: list[Executed] = field(default_factory=list)

    def __post_init__(self) -> None:
        memory = SimulatedMemory(self.regions)
        self.variables = UnreadVariables(memory)
        self.server = Server(B200, memory, Streams(), self.launched, variables=self.variables)
        self.log = RequestLog(self.server)
        self.server.observer = Observers([self.log, self])

    def executed(self, request: Executed) -> None:
        self.seen.append(request)

    def launched(self, launch: Launch) -> None:
        (where,) = self.variables(launch.module, False).values()
        ctypes.memmove(where.address, bytes([bytes_at(where.address, 1)[0] + 1]), 1)

    def count(self, module: int) -> None:
        dims = {"grid": [1, 1, 1], "block": [1, 1, 1], "cluster": [1, 1, 1]}
        launch = {"module": module, "kernel": "count", "dynamic_smem": 0, "stream": 0, "attributes": [], **dims}
        self.request("launch", **launch)

    def variable(self, module: int, *, fresh: bool = False) -> int:
        (where,) = self.request("variables", module=module, fresh=fresh)["variables"].values()
        return int(where[0])

    def request(self, kind: str, *blobs: bytes, **fields: Any) -> dict[str, Any]:
        message = Message(kind, {"thread": 1, "current": 0, "line": None, **fields}, blobs)
        return self.server.execute(message)[0]

    def allocate(self, size: int) -> int:
        return int(self.request("allocate", size=size, stream=None)["address"])

    def upload(self, to: int, data: bytes) -> None:
        self.request("copy", data, size=len(data), to=to, **HTOD)

    def move(self, to: int, source: int, size: int) -> None:
        self.request("copy", size=size, to=to, source=source, **DTOD)

    def operator(self, name: str, *args: Any, overload: str = "") -> dict[str, Any]:
        return self.request(
            "operator", name=f"aten::{name}", overload=overload, args=list(args), kwargs={}, generator=None
        )

    def tensor(self, address: int, *sizes: int, dtype: str = "uint8") -> dict[str, Any]:
        strides = [1] * len(sizes)
        return {"tensor": [address, dtype, list(sizes), strides, 0]}


def bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def test_requests_are_repeated_on_other_inputs_and_leave_memory_as_it_was() -> None:
    device = Device()
    given, out = device.server.blocks.allocate(4, owned=False).address, device.allocate(4)
    ctypes.memmove(given, b"AAAA", 4)
    counter = device.allocate(1)
    device.upload(counter, b"0")
    device.log.begin()
    scratch = device.allocate(4)
    device.move(scratch, given, 4)
    device.upload(scratch, b"x")
    device.move(scratch + 1, counter, 1)
    device.upload(counter, b"1")
    device.move(out, scratch, 4)
    device.request("free", address=scratch, stream=None)
    assert bytes_at(out, 4) == b"x0AA"
    with pytest.raises(HostSideError):
        device.move(out, scratch, 4)
    ctypes.memmove(given, b"BBBB", 4)
    count = len(device.seen)
    with device.log.repeated():
        seen = bytes_at(out, 4)
    assert seen == b"x0BB", "the counter was what it was before the call, and the freed block lived again"
    assert bytes_at(out, 4) == b"x0AA"
    assert bytes_at(counter, 1) == b"1"
    assert len(device.seen) == count, "nobody observes a repetition"
    assert device.regions.find(scratch) is None
    device.log.end()
    assert not device.log.incomplete


def test_an_output_that_the_caller_keeps_holds_the_same_beside_more_memory_than_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_log, "_MOST_RESTORED", 64)
    device = Device()
    given = device.server.blocks.allocate(4, owned=False).address
    ctypes.memmove(given, b"AAAA", 4)
    device.allocate(65)
    device.log.begin()
    scratch, out = device.allocate(4), device.allocate(4)
    for block in (scratch, out):
        device.move(block, given, 4)
    device.server.blocks.keep(out)
    ctypes.memmove(given, b"BBBB", 4)
    with device.log.repeated():
        assert bytes_at(out, 4) == b"BBBB"
    assert bytes_at(out, 4) == b"AAAA"
    assert bytes_at(scratch, 4) == b"BBBB", "the kernel's own memory beyond the limit is left as it is"


def test_variables_of_a_module_that_the_call_loads_hold_their_initial_values_again() -> None:
    device = Device()
    out = device.allocate(2)
    old = device.request("module", b"", COUNTS.encode(), has_ptx=True)["module"]
    device.count(old)
    device.log.begin()
    new = device.request("module", b"", COUNTS.encode(), has_ptx=True)["module"]
    device.count(new)
    device.move(out, device.variable(new), 1)
    device.variable(old, fresh=True)
    device.count(old)
    device.move(out + 1, device.variable(old), 1)
    device.count(new)
    assert bytes_at(out, 2) == b"\1\1"
    with device.log.repeated():
        assert bytes_at(out, 2) == b"\1\1"
    assert bytes_at(device.variable(new), 1) == b"\2"
    assert bytes_at(device.variable(old), 1) == b"\1"


def test_a_log_that_grows_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_BYTES", 64)
    device = Device()
    out = device.allocate(40)
    device.log.begin()
    device.upload(out, bytes(40))
    assert not device.log.incomplete
    device.upload(out, bytes(40))
    assert "made more than" in device.log.incomplete
    device.log.begin()
    assert not device.log.incomplete


def test_numbers_shapes_and_errors_count_as_reads() -> None:
    device = Device()
    block = device.allocate(4)
    device.upload(block, b"\1\0\2\0")
    far = device.allocate(8)
    device.upload(far, (99).to_bytes(8, "little"))
    one = device.tensor(block, 4)

    def told(name: str, *args: Any, overload: str = "") -> bool:
        device.seen.clear()
        with contextlib.suppress(IndexError):
            device.operator(name, *args, overload=overload)
        return any(request.to_host and request.reads for request in device.seen)

    assert told("_local_scalar_dense", device.tensor(block, 1))
    assert told("nonzero", one)
    assert told("index", one, [device.tensor(block, 4, dtype="bool")], overload="Tensor")
    assert told("index_select", one, 0, device.tensor(far, 1, dtype="int64"))
    assert not told("clone", one)
    assert not told("add", one, 1, overload="Scalar")


def test_what_an_operator_wrote_before_its_error_is_seen() -> None:
    device = Device()
    out, index = device.allocate(4), device.allocate(16)
    device.upload(index, (1).to_bytes(8, "little") + (99).to_bytes(8, "little"))
    device.seen.clear()
    value = device.tensor(device.allocate(2), 2)
    with pytest.raises(Exception, match="index"):
        device.operator("index_put_", device.tensor(out, 4), [device.tensor(index, 2, dtype="int64")], value)
    (request,) = (one for one in device.seen if one.kind is Kind.OPERATOR)
    assert [extent.address for extent in request.writes] == [out]
