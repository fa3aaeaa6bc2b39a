"""Launches on streams: what each touches is known byte by byte, and in all of the processes that share it."""

from __future__ import annotations

import ctypes

import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.launches import Launch, ModuleImage
from pytest_nvfp4.driver.streams import Extent, Streams
from pytest_nvfp4.host.graphs import Graph, LaunchQueue
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.run import parallel
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session
from tests.sim.ptx_case import kernel_text

MAIN, A, B = 0, 0x5C01, 0x5C02
THREAD = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 32, %r0; add.u32 %r2, %r2, %r300;"
PLACE = THREAD + "shl.b32 %r3, %r2, 2; cvt.u64.u32 %rd1, %r3; add.u64 %rd2, %rd100, %rd1; add.u64 %rd3, %rd101, %rd1;"
"""%rd2 and %rd3: the thread's word of each tensor; %r300 is the first thread's."""
WRITE = "st.global.b32 [%rd2], %r2;"
COPY = "ld.global.b32 %r5, [%rd3]; st.global.b32 [%rd2], %r5;"
READ = "ld.global.b32 %r5, [%rd2];"
ADD = "red.global.add.u32 [%rd2], 1;"


class Device:
    """A simulated device with two streams that wait for none, and tensors x, y, z of 1024 bytes."""

    def __init__(self, *, processes: int = 1) -> None:
        machine = Machine(model=for_arch("sm_100a"))
        machine.monitor = detector = Detector()
        detector.followed = True
        self.memory = SimulatedMemory(machine.memory)
        self.session = Session(machine, self.memory, processes=processes)
        self.streams = Streams()
        for stream in (A, B):
            self.streams.add(stream, blocking=False)
        self.order = self.session.order = HostOrder(self.streams, machine.memory)
        self.queue = LaunchQueue(self.session.launch, self.streams)
        self.tensors = {name: self.tensor(name) for name in "xyz"}

    def tensor(self, name: str) -> int:
        address = self.memory.allocate(1024)
        ctypes.memset(address, 0, 1024)
        self.memory.name(address, name)
        self.streams.allocated(address, 1024, pooled=True)
        return address

    def launch(self, stream: int, body: str, one: str, other: str = "z", *, start: int = 0, ctas: int = 1) -> None:
        text = kernel_text(PLACE + body, buffers=2, values=1)
        pointers = [self.tensors[name].to_bytes(8, "little") for name in (one, other)]
        self.queue(
            Launch(
                kernel="kernel", grid=(ctas, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), dynamic_smem=0, stream=stream,
                params=(*pointers, start.to_bytes(4, "little")), attributes={}, ordinal=len(self.session.launches),
                module=ModuleImage(cubin=b"", ptx=text, param_sizes={}),
            )
        )  # fmt: skip

    def after(self, stream: int, other: int) -> None:
        event = self.streams.new_event()
        self.streams.record(event, other)
        self.streams.wait(event, stream)

    @property
    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.session.findings]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("first", "second"), [((WRITE, "x"), (READ, "x")), ((READ, "x"), (WRITE, "x")), ((WRITE, "x"), (COPY, "y", "x"))]
)
def test_two_launches(first, second, ordered):
    device = Device()
    device.launch(A, *first)
    if ordered:
        device.after(B, A)
    device.launch(B, *second)
    assert device.kinds == ([] if ordered else ["race"])


def test_a_launch_is_told_by_both_places():
    device = Device()
    device.launch(A, WRITE, "x")
    device.launch(B, COPY, "y", "x")
    (finding,) = device.order.findings
    assert "kernel kernel launched at test_launches_on_streams.py:" in finding.message
    assert "reads x at byte 0 while" in finding.message
    assert finding.message.count("PTX line ") == 2
    assert "(ld.global.b32))" in finding.message
    assert "(st.global.b32))" in finding.message


@pytest.mark.parametrize(("start", "races"), [(32, []), (31, ["race"])])
def test_parts_of_one_tensor(start, races):
    device = Device()
    device.launch(A, WRITE, "x")
    device.launch(B, WRITE, "x", start=start)
    assert device.kinds == races


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [(ADD, ADD, []), (ADD, READ, ["race"]), (READ, ADD, ["race"]), (ADD, "ld.relaxed.gpu.global.b32 %r5, [%rd2];", []),
     (ADD + READ, ADD, ["race"]), (WRITE + ADD, ADD, ["race"])],
)  # fmt: skip
def test_atomics_of_two_launches(first, second, races):
    device = Device()
    device.launch(A, first, "x")
    device.launch(B, second, "x")
    assert device.kinds == races


SET, WAIT = "st.release.gpu.global.b32 [%rd100+512], 1;", "ld.acquire.gpu.global.b32 %r6, [%rd100+512];"


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [(WRITE + SET, WAIT + READ, []),
     (WRITE + SET, "atom.acquire.gpu.global.cas.b32 %r6, [%rd100+512], 1, 2;" + READ, []),
     (WRITE, WAIT + READ, ["race"]), (WRITE + SET, READ, ["race"]),
     (WRITE + SET, "red.global.add.u32 [%rd100+512], 1;" + READ, ["race"])],
)  # fmt: skip
def test_launches_that_wait_for_each_other_by_a_flag(first, second, races):
    device = Device()
    device.launch(A, first, "x")
    device.launch(B, second, "x")
    assert device.kinds == races


@pytest.mark.parametrize("forked", [True, False])
def test_a_tensor_that_kernels_must_not_write(forked):
    device = Device()
    device.memory.name(device.tensors["x"], "the input", writable=False)
    device.streams.work("a copy", stream=MAIN, writes=[Extent(device.tensors["x"], 64)])
    if forked:
        device.after(A, MAIN)
    device.launch(A, COPY, "y", "x")
    assert device.kinds == ([] if forked else ["race"])
    assert all("reads the input at byte 0 while a copy" in finding.message for finding in device.order.findings)


def test_what_another_process_touched(monkeypatch):
    monkeypatch.setattr(parallel, "_WORTH_S", 0)
    for cta in range(4):
        device = Device(processes=2)
        device.memory.name(device.tensors["y"], "the input", writable=False)
        device.launch(A, COPY, "x", "y", ctas=4)
        device.launch(B, READ, "x", start=32 * cta)
        device.streams.work("a copy", stream=MAIN, writes=[Extent(device.tensors["y"] + 128 * cta, 4)])
        assert device.kinds == ["race", "race"], cta
        device = Device(processes=2)
        device.launch(A, COPY, "x", "y", ctas=4)
        device.launch(B, READ, "x", start=128)
        assert device.kinds == []


@pytest.mark.parametrize("joined", [True, False])
def test_a_graph(joined):
    device = Device()
    graph = Graph(device.queue)
    graph.capture_begin()
    device.launch(MAIN, WRITE, "x")
    device.after(A, MAIN)
    device.launch(A, COPY, "y", "x")
    if joined:
        device.after(MAIN, A)
    device.launch(MAIN, COPY, "z", "y")
    graph.capture_end()
    assert device.session.launches == []
    for _ in range(3):
        graph.replay()
    device.launch(MAIN, READ, "y")
    assert len(device.session.launches) == 10
    assert device.kinds == ([] if joined else ["race"])
