"""Requests of a kernel's process: honest ones are executed, any other one is refused and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_nvfp4.driver.device_model import B200  # noqa: E402
from pytest_nvfp4.driver.launches import HostSideError  # noqa: E402
from pytest_nvfp4.driver.memory import HostBlocks  # noqa: E402
from pytest_nvfp4.driver.streams import Streams  # noqa: E402
from pytest_nvfp4.machine.requests import Executed, Kind  # noqa: E402
from pytest_nvfp4.machine.server import Server  # noqa: E402
from pytest_nvfp4.machine.wire import Blob, Message, WireError  # noqa: E402
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory  # noqa: E402
from pytest_nvfp4.sim.run.machine import Machine  # noqa: E402
from pytest_nvfp4.sim.run.session import Session  # noqa: E402

SIZE = 64


class Device:
    """A server with a block of the kernel's process, and one of its caller."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self.seen: list[Executed] = []
        self.server = Server(B200, HostBlocks(), Streams(), self.launched.append, most=1 << 20)
        self.server.observer = self
        self.callers = self.server.blocks.allocate(SIZE, owned=False)
        self.own = self.server.blocks.allocate(SIZE)
        self.callers.tensor.fill_(1)
        self.own.tensor.copy_(torch.arange(SIZE, dtype=torch.uint8))

    def executed(self, request: Executed) -> None:
        """Record a request."""
        self.seen.append(request)

    def send(self, kind: str, *blobs: Blob, **fields: Any) -> tuple[dict[str, Any], list[Blob]]:
        """Execute a request."""
        common = {"thread": 1, "current": 0, "line": ["kernel.py", 7, "f", None]}
        return self.server.execute(Message(kind, {**common, **fields}, blobs))

    def operator(self, name: str, *args: Any, overload: str = "", **kwargs: Any) -> dict[str, Any]:
        """Execute an operator of ``aten``; return the answer's fields."""
        return self.send("operator", name=f"aten::{name}", overload=overload, args=list(args), kwargs=kwargs)[0]

    def tensor(self, *, sizes: Any = (SIZE,), strides: Any = (1,), offset: Any = 0, base: Any = None) -> dict[str, Any]:
        """The description of a tensor over the kernel's own block."""
        return {"tensor": [self.own.address if base is None else base, "uint8", list(sizes), list(strides), offset]}

    @property
    def state(self) -> list[int]:
        """All bytes."""
        return [*self.callers.tensor.tolist(), *self.own.tensor.tolist()]


def test_honest_requests_are_executed_and_seen() -> None:
    device = Device()
    x = device.tensor(sizes=(8, 8), strides=(1, 8))
    new = device.operator("add", x, 1, overload="Scalar")["result"]["new"]
    assert new[1:4] == ["uint8", [8, 8], [1, 8]]
    assert new[5] == SIZE
    _, blobs = device.send("copy", what="cuMemcpyDtoH", to=None, source=new[0], size=SIZE, stream=0, waits=True)
    assert list(blobs[0]) == list(range(1, SIZE + 1))
    answer, _ = device.send(
        "copy", b"ab", what="cuMemcpyHtoD", to=device.own.address, source=None, size=2, stream=0, waits=True
    )
    assert answer == {}
    device.send("fill", b"\x05", what="cuMemset", to=device.own.address + 60, count=4, stream=0)
    assert device.own.tensor.tolist() == [97, 98, *range(2, 60), 5, 5, 5, 5]
    assert device.operator("fill_", x, 3, overload="Scalar")["result"] == {"argument": 0}
    view = device.operator("_unsafe_view", device.tensor(), [8, 8])
    assert view["result"]["tensor"][0] == device.own.address
    device.send("read", tensor=device.tensor()["tensor"], freed=[[new[0], None]])
    kinds = [(one.kind, one.line.line if one.line else None) for one in device.seen]
    assert kinds[:3] == [(Kind.OPERATOR, 7), (Kind.COPY, 7), (Kind.COPY, 7)], kinds
    assert kinds[-2:] == [(Kind.FREE, None), (Kind.READ, 7)], kinds
    with pytest.raises(RuntimeError, match="no live allocation"):
        device.operator("neg", device.tensor(base=new[0]))


REFUSED: dict[str, Any] = {
    "past its block": lambda d: d.operator("neg", d.tensor(sizes=(SIZE + 1,))),
    "past its block by strides": lambda d: d.operator("neg", d.tensor(sizes=(2,), strides=(SIZE,))),
    "past its block by offset": lambda d: d.operator("neg", d.tensor(offset=1)),
    "before its block": lambda d: d.operator("neg", d.tensor(offset=-1)),
    "backwards": lambda d: d.operator("neg", d.tensor(strides=(-1,), offset=SIZE - 1)),
    "more elements than 64 bits count": lambda d: d.operator("neg", d.tensor(sizes=[1 << 40] * 2, strides=[0, 0])),
    "inside a block": lambda d: d.operator("neg", d.tensor(base=d.own.address + 8, sizes=(8,))),
    "nowhere": lambda d: d.operator("neg", d.tensor(base=4096)),
    "text as an address": lambda d: d.operator("neg", d.tensor(base="x")),
    "booleans as sizes": lambda d: d.operator("neg", d.tensor(sizes=(True,))),
    "another namespace": lambda d: d.send("operator", name="prims::neg", overload="", args=[], kwargs={}),
    "an attribute": lambda d: d.operator("__class__"),
    "another attribute": lambda d: d.operator("neg", d.tensor(), overload="__init__"),
    "files": lambda d: d.operator("from_file", "/etc/passwd"),
    "storages": lambda d: d.operator("set_", d.tensor(), d.tensor(), overload="source_Tensor"),
    "sizes": lambda d: d.operator("resize_", d.tensor(), [1 << 30]),
    "unchecked indices": lambda d: d.operator("_index_put_impl_", d.tensor(), [d.tensor()], d.tensor(), False, True),
    "statistics written unseen": lambda d: d.operator(
        "native_batch_norm", *[d.tensor(sizes=(4, 4), strides=(4, 1))] * 5, True, 1.0, 0.1
    ),
    "statistics of another size": lambda d: d.operator(
        "_native_batch_norm_legit", *[d.tensor(sizes=(4, 4), strides=(4, 1))] * 5, True, 1.0, 0.1
    ),
    "stores to unchecked indices": lambda d: d.operator(
        "max_unpool2d", d.tensor(sizes=(1, 2, 2), strides=(4, 2, 1)), d.tensor(), [2, 2]
    ),
    "old bytes of the heap": lambda d: d.operator(
        "empty", [64], overload="memory_format", device={"device": "cpu"}
    ),
    "too much memory": lambda d: d.operator("empty", [1 << 30], overload="memory_format", device={"device": "cuda"}),
    "too many arguments": lambda d: d.operator("neg", *[d.tensor()] * 9),
    "a kind of argument": lambda d: d.operator("neg", {"pickle": "x"}),
    "two kinds": lambda d: d.operator("neg", {"dtype": "uint8", "device": "cuda"}),
    "a blob that is not": lambda d: d.operator("neg", {"host": ["uint8", [4], [1], 0]}),
    "a type that is not": lambda d: d.operator("neg", {"dtype": "qint8"}),
    "a generator": lambda d: d.send(
        "operator", b"x", name="aten::neg", overload="", args=[d.tensor()], kwargs={}, generator=0
    ),
    "no request": lambda d: d.send("poke"),
    "no thread": lambda d: d.server.execute(Message("synchronize", {})),
    "a line": lambda d: d.send("synchronize", line=["x"] * 4),
    "lines without end": lambda d: d.send("synchronize", line=["f", 1, "g", ["f", 1, "g", ["f", 1, "g", None]]]),
    "the caller's block freed": lambda d: d.send("free", address=d.callers.address),
    "the caller's block dropped": lambda d: d.send("synchronize", freed=[[d.callers.address, None]]),
    "freed twice": lambda d: d.send("free", address=12345),
    "a copy past the end": lambda d: d.send(
        "copy", bytes(8), what="x", to=d.own.address + 60, source=None, size=8, stream=0, waits=True
    ),
    "a copy of other bytes": lambda d: d.send(
        "copy", b"a", what="x", to=d.own.address, source=None, size=8, stream=0, waits=True
    ),
    "a copy from nowhere": lambda d: d.send(
        "copy", what="x", to=d.own.address, source=4096, size=8, stream=0, waits=True
    ),
    "a copy on the host": lambda d: d.send("copy", what="x", to=None, source=None, size=8, stream=0, waits=True),
    "a fill past the end": lambda d: d.send("fill", b"\0", what="x", to=d.own.address, count=SIZE + 1, stream=0),
    "a fill of nothing": lambda d: d.send("fill", b"", what="x", to=d.own.address, count=1, stream=0),
    "a huge allocation": lambda d: d.send("allocate", size=1 << 45),
    "a negative allocation": lambda d: d.send("allocate", size=-1),
    "a module": lambda d: d.send("module", b"\x7fELF" + bytes(60), b"", has_ptx=False),
    "half a module": lambda d: d.send("module", b"", has_ptx=False),
    "a launch of nothing": lambda d: d.send(
        "launch", module=0, kernel="k", grid=[1, 1, 1], block=[1, 1, 1], cluster=[1, 1, 1], dynamic_smem=0, stream=0,
        attributes=[],
    ),
    "a grid of text": lambda d: d.send("launch", module=0, kernel="k", grid="111"),
    "a graph that is not": lambda d: d.send("graph", act="replay", graph=3),
    "a graph that has no beginning": lambda d: d.send("graph", act="end"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_request_is_refused(name: str) -> None:
    device = Device()
    before = device.state
    with pytest.raises((WireError, RuntimeError, ValueError, IndexError, TypeError, MemoryError, NotImplementedError)):
        REFUSED[name](device)
    assert device.state == before
    assert not device.launched
    assert device.operator("neg", device.tensor())["result"]["new"]  # and the next one is executed


def test_a_kept_block_outlives_its_tensors() -> None:
    device = Device()
    device.server.blocks.keep(device.own.address)
    device.send("synchronize", freed=[[device.own.address, None]])
    device.send("free", address=device.own.address)
    assert device.operator("neg", device.tensor())["result"]["new"]


def test_no_answer_has_old_bytes_of_the_heap() -> None:
    device = Device()
    for _ in range(20):
        torch.full((4096,), 7, dtype=torch.uint8)  # left behind
        _, (old,) = device.send(
            "operator", name="aten::empty_like", overload="", args=[device.tensor(sizes=(4096,), strides=(0,))],
            kwargs={"device": {"device": "cpu"}},
        )  # fmt: skip
        assert not any(old)


def test_random_numbers_tell_the_host_of_their_operands() -> None:
    device = Device()
    state = bytes(torch.Generator().get_state().tolist())
    x = device.operator("_to_copy", device.tensor(), dtype={"dtype": "float32"})["result"]["new"]
    device.send("operator", state, name="aten::poisson", overload="", args=[{"tensor": x[:5]}], kwargs={}, generator=0)
    assert device.seen[-1].to_host


PTX = ".version 8.7\n.target sm_100a\n.visible .entry k(.param .u64 p, .param .u32 n)\n{ ret; }\n"


def _launch(device: Device, *params: bytes) -> None:
    module = device.send("module", b"", PTX.encode(), has_ptx=True)[0]["module"]
    shape = {"grid": [2, 1, 1], "block": [32, 1, 1], "cluster": [1, 1, 1], "dynamic_smem": 0, "stream": 0}
    device.send("launch", *params, module=module, kernel="k", attributes=[], **shape)


def test_a_module_of_ptx_needs_no_cubin() -> None:
    device = Device()
    _launch(device, bytes(8), bytes(4))
    (launch,) = device.launched
    assert (launch.module.cubin, launch.module.ptx, launch.module.registers) == (b"", PTX, {})
    assert launch.module.param_sizes == {"k": (8, 4)}
    for wrong in ((bytes(8),), (bytes(8), bytes(8))):
        with pytest.raises(Exception, match="with parameters of"):
            _launch(device, *wrong)
    with pytest.raises(Exception, match=r"cannot be read.*no \.entry"):
        device.send("module", b"", b".version 8.7", has_ptx=True)
    assert len(device.launched) == 1


_MODULE = """
.version 8.8
.target sm_100a
.address_size 64
.visible .const .align 4 .b8 table[4] = {1, 2, 3, 4};
.visible .global .align 4 .b32 calls = 7;
.visible .entry k() { ret; }
"""


def test_variables_of_modules_are_blocks_that_are_not_freed() -> None:
    machine = Machine(model=B200)
    session = Session(machine, SimulatedMemory(machine.memory))
    device = Device()
    device.server = Server(B200, session.memory, Streams(), session.launch, variables=session.variables, most=1 << 20)

    def variables(module: int, *, fresh: bool = False) -> Any:
        return device.send("variables", module=module, fresh=fresh)[0]["variables"]

    first, second = (device.send("module", b"", _MODULE.encode(), has_ptx=True)[0]["module"] for _ in range(2))
    found, other = variables(first), variables(second)
    assert {name: size for name, (_, size) in found.items()} == {"table": 4, "calls": 4}
    assert found["calls"] != other["calls"]
    address = found["calls"][0]
    copy = {"what": "a copy", "size": 4, "stream": 0, "waits": True}
    device.send("copy", b"\5\0\0\0", to=address, source=None, **copy)
    assert device.send("copy", to=None, source=address, **copy)[1] == [b"\5\0\0\0"]
    assert (address, b"\5\0\0\0") in device.server.blocks.contents(most=1 << 20)
    assert variables(first, fresh=True) == found
    assert device.send("copy", to=None, source=address, **copy)[1] == [b"\7\0\0\0"]
    with pytest.raises(HostSideError, match="which is the variable calls of a module"):
        device.send("free", address=address, stream=None)
    with pytest.raises(HostSideError, match="are not inside one live device allocation"):
        device.send("copy", to=None, source=address, **{**copy, "size": 5})
    with pytest.raises(HostSideError, match="there is no module 9"):
        variables(9)
    plain = _MODULE.replace("calls = 7", "calls").replace(".visible .const", "//").replace(".visible .global", "//")
    numbers = {device.send("module", b"", plain.encode(), has_ptx=True)[0]["module"] for _ in range(2)}
    assert len(numbers) == 1
    assert variables(numbers.pop()) == {}
