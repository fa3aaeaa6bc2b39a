"""A simulated device with two streams, on which PTX kernels are launched."""

from __future__ import annotations

import ctypes

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.launches import Launch, ModuleImage
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.host.graphs import LaunchQueue
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session
from tests.sim.ptx_case import kernel_text

MAIN, A, B = 0, 0x5C01, 0x5C02
THREAD = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 32, %r0; add.u32 %r2, %r2, %r300;"
PLACE = THREAD + "shl.b32 %r3, %r2, 2; cvt.u64.u32 %rd1, %r3; add.u64 %rd2, %rd100, %rd1; add.u64 %rd3, %rd101, %rd1;"
"""%rd2 and %rd3: the thread's word of each tensor; %r300 is the first thread's."""


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
