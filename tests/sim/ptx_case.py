"""Run a few lines of PTX in the simulator: the harness of the units' tests."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.monitor import Monitor
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.parallel import run_grid
from pytest_nvfp4.sim.run.programs import Programs

_HEADER = """
.version 8.8
.target {arch}
.address_size 64
{globals}
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel({parameters})
{directives}
{{
{registers}
{body}
ret;
}}
"""
_REGISTERS = """
.reg .pred %p<100>;
.reg .b16 %rs<200>;
.reg .b32 %r<400>;
.reg .b64 %rd<200>;
.reg .f32 %f<200>;
.reg .f64 %fd<50>;
"""


def kernel_text(
    body: str, *, buffers: int, values: int = 0, arch: str = "sm_100a", globals_: str = "", directives: str = ""
) -> str:
    """The module that `run_ptx` makes of a body: pointers in ``%rd100`` onwards, values in ``%r300`` onwards."""
    pointers = [f"ld.param.b64 %rd{100 + number}, [p{number}];" for number in range(buffers)]
    loads = [*pointers, *(f"ld.param.b32 %r{300 + number}, [v{number}];" for number in range(values))]
    declared = [*(f".param .b64 p{n}" for n in range(buffers)), *(f".param .b32 v{n}" for n in range(values))]
    return _HEADER.format(
        arch=arch,
        globals=globals_,
        parameters=", ".join(declared),
        directives=directives,
        registers=_REGISTERS,
        body="\n".join([*loads, body]),
    )


@dataclass
class Ran:
    """A finished launch and its buffers, by name."""

    grid: Grid
    buffers: dict[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.buffers[name]


def run_ptx(
    body: str,
    *,
    buffers: Mapping[str, NDArray[Any]] | None = None,
    values: Sequence[int] = (),
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    shared: int = 0,
    arch: str = "sm_100a",
    globals_: str = "",
    directives: str = "",
    read_only: Sequence[str] = (),
    asynchronous: Asynchronous | None = None,
    machine: Machine | None = None,
    raw: bool = False,
    prepare: Any = None,
    processes: int = 1,
    detailed: bool = False,
) -> Ran:
    """Run ``body`` as a kernel.

    Each buffer is a 64-bit pointer parameter ``p0, p1, ...`` in order, already loaded into ``%rd100, %rd101, ...``;
    each value a 32-bit parameter ``v0 ...`` in ``%r300 ...``. Buffers are copied, and come back as they are after.
    ``smem`` is the dynamic shared memory. Registers %p<100> %rs<200> %r<400> %rd<200> %f<200> %fd<50> are declared.
    With ``raw`` the body is a whole module whose kernel is called ``kernel``, with the same parameters.
    """
    buffers = dict(buffers or {})
    machine = machine or Machine(model=for_arch(arch), asynchronous=asynchronous)
    kept: dict[str, Any] = {}
    parameters: list[bytes] = []
    device = SimulatedMemory(machine.memory) if processes > 1 else None
    for name, array in buffers.items():
        size = array.nbytes
        memory: Any = device
        if device is not None:
            start = device.allocate(size)
            device.name(start, name, writable=name not in read_only)
        else:
            memory = ctypes.create_string_buffer(size + 512)
            start = -(-(ctypes.addressof(memory) + 128) // 256) * 256
            machine.memory.add(Region(name, start, size, name not in read_only))
        ctypes.memmove(start, np.ascontiguousarray(array).tobytes(), size)
        kept[name] = (memory, start, size, array)
        parameters.append(start.to_bytes(8, "little"))
    parameters += [(value & 0xFFFF_FFFF).to_bytes(4, "little") for value in values]
    text = (
        body
        if raw
        else kernel_text(
            body, buffers=len(buffers), values=len(values), arch=arch, globals_=globals_, directives=directives
        )
    )
    monitor: object = machine.monitor
    watching = monitor if isinstance(monitor, Monitor) else None
    stepped = machine.debugger is not None
    program = Programs().get(text, "kernel", monitor=watching, counted=detailed, stepped=stepped)
    launched = Grid(
        machine,
        program,
        shape=grid,
        block=block,
        cluster=cluster,
        dynamic_shared=shared,
        parameters=tuple(parameters),
    )
    if detailed:
        launched.add_detail()
    if prepare is not None:
        prepare(launched)
    try:
        run_grid(launched, processes=processes)
    finally:
        launched.close()
    out = {
        name: np.frombuffer(ctypes.string_at(start, size), array.dtype).reshape(array.shape).copy()
        for name, (_, start, size, array) in kept.items()
    }
    return Ran(launched, out)
