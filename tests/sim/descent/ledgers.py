"""A ledger over a simulated device, with requests made by hand and launches of real PTX."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pytest_nvfp4.driver.launches import Launch, ModuleImage
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.driver.user_line import UserLine
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.descent.ledger import Ledger, Written
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session
from tests.sim.ptx_case import kernel_text

ELEMENTS = 64
BYTES = 2 * ELEMENTS
COPY = """
mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %rd100, %rd1; add.s64 %rd3, %rd101, %rd1;
ld.global.b32 %r2, [%rd2]; st.global.b32 [%rd3], %r2;
"""
"""Copies 32 words from the first buffer to the second."""


def elements(buffer: Extent, size: int) -> Extent:
    """Return a buffer as a tensor of elements of ``size`` bytes."""
    return Extent(buffer.address, size, (BYTES // size,), (size,))


def line(number: int) -> UserLine:
    return UserLine("/job/source/k.py", number, "custom_kernel")


@dataclass
class Bench:
    """A device with buffers A (an input), C (the output, watched by elements of 2 bytes), and others by name."""

    session: Session = field(init=False)
    memory: SimulatedMemory = field(init=False)
    ledger: Ledger = field(init=False)
    c: Region = field(init=False)
    a: Extent = field(init=False)

    def __post_init__(self) -> None:
        machine = Machine()
        self.memory = SimulatedMemory(machine.memory)
        self.session = Session(machine, self.memory)
        self.ledger = Ledger(self.session)
        self.a, c = self.buffer(), self.buffer()
        self.c = self.memory.name(c.address, "C")
        self.begin()

    def begin(self) -> None:
        """Begin a call, with A of elements of one byte."""
        self.c.watch(2)
        self.ledger.begin(given=[elements(self.a, 1)], outputs=[self.c])

    @property
    def out(self) -> Extent:
        return Extent(self.c.start, self.c.size)

    def buffer(self, size: int = BYTES) -> Extent:
        extent = Extent(self.memory.allocate(size), size)
        self.ledger.executed(Executed(Kind.ALLOCATE, "cuMemAlloc", writes=(extent,)))
        return extent

    def operator(
        self,
        name: str,
        *reads: Extent,
        to: Extent | None = None,
        at: int = 1,
        host: int = 0,
        selects: int = 0,
        converts: bool = False,
    ) -> None:
        self.ledger.executed(
            Executed(
                Kind.OPERATOR,
                f"torch's {name}",
                reads=reads,
                selects=selects,
                converts=converts,
                writes=() if to is None else (to,),
                from_host=[bytes(host)] * bool(host),
                to_host=8 * (to is None),
                line=line(at),
                operator=f"aten::{name}",
            )
        )

    def upload(self, to: Extent, *, at: int = 1) -> None:
        self.ledger.executed(Executed(Kind.COPY, "cuMemcpyHtoD", writes=(to,), from_host=[bytes(8)], line=line(at)))

    def read(self, extent: Extent, *, at: int = 1) -> None:
        self.ledger.executed(Executed(Kind.READ, "tolist", reads=(extent,), to_host=extent.size, line=line(at)))

    def launch(self, *buffers: Extent, body: str = COPY, at: int = 1, ctas: int = 1) -> None:
        text = kernel_text(body, buffers=len(buffers))
        launch = Launch(
            kernel="kernel",
            grid=(ctas, 1, 1),
            block=(32, 1, 1),
            cluster=(1, 1, 1),
            dynamic_smem=0,
            stream=0,
            params=tuple(buffer.address.to_bytes(8, "little") for buffer in buffers),
            attributes={},
            module=ModuleImage(b"", text, {"kernel": (8,) * len(buffers)}),
            ordinal=len(self.session.launches),
        )
        try:
            self.session.launch(launch)
        finally:
            self.ledger.executed(Executed(Kind.LAUNCH, "kernel", line=line(at), launch=launch))

    def written(self) -> list[Written]:
        return self.ledger.written(0)

    def one(self) -> Written:
        """Who wrote all of C."""
        (written,) = self.written()
        assert written.elements is not None
        assert np.array_equal(written.elements, np.arange(ELEMENTS))
        return written
