"""A case on the simulator and on silicon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.silicon.driver import Gpu, Launch, TensorMapSpec
from tests.silicon.model import ARCH, KERNEL, Case
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.maps import Geometry

__all__ = ["Outputs", "Runner", "on_silicon", "simulate"]

Outputs = dict[str, NDArray[Any]]
Runner = Callable[[Case], Outputs]


def simulate(case: Case) -> Outputs:
    """Run on the simulator.

    Raises:
        Fault: the simulator found the kernel wrong.
        Unsupported: it does not know an instruction.
        AssertionError: it has findings that do not stop a kernel.
    """

    def prepare(grid: Any) -> None:
        regions = {region.name: region for region in grid.machine.memory}
        for where, (geometry, tensor) in case.maps.items():
            regions[where].data[:] = np.frombuffer(geometry.encode(regions[tensor].start, tag=0), np.uint8)

    ran = run_ptx(
        case.ptx,
        buffers=case.buffers,
        values=case.values,
        grid=case.grid,
        block=case.block,
        cluster=case.cluster,
        shared=case.shared,
        arch=ARCH,
        raw=True,
        prepare=prepare,
    )
    assert not ran.grid.findings, [finding.message for finding in ran.grid.findings]
    return _kept(case, ran.buffers)


def on_silicon(gpu: Gpu) -> Runner:
    """A runner on a GPU.

    The runner raises ``CudaError`` where the driver refuses the PTX or the launch, or the kernel faults, and
    ``Overrun`` where it writes next to a buffer.
    """

    def run(case: Case) -> Outputs:
        function = gpu.load(case.ptx, KERNEL)
        made = {name: gpu.allocate(name, data) for name, data in case.buffers.items()}
        for where, (geometry, tensor) in case.maps.items():
            gpu.write(made[where].start, gpu.encode(_spec(geometry), made[tensor].start))
        parameters = [item.start.to_bytes(8, "little") for item in made.values()]
        parameters += [(value & 0xFFFF_FFFF).to_bytes(4, "little") for value in case.values]
        gpu.launch(function, parameters, Launch(case.grid, case.block, case.cluster, case.shared))
        read = {name: gpu.read(item) for name, item in made.items()}
        for item in made.values():
            gpu.free(item)
        return _kept(case, read)

    return run


def _spec(geometry: Geometry) -> TensorMapSpec:
    return TensorMapSpec(
        element=int(geometry.element),
        dims=geometry.dims,
        strides=geometry.strides,
        box=geometry.box,
        steps=geometry.steps or (1,) * len(geometry.box),
        swizzle=geometry.swizzle,
        interleave=geometry.interleave,
        fill=geometry.fill,
        tf32=bool(geometry.tf32),
    )


def _kept(case: Case, buffers: Outputs) -> Outputs:
    found = {name: buffers[name] for name in case.outputs}
    for where in case.maps:  # the driver's encoding against ours; the address differs, and bytes 64 on mean nothing
        found[f"{where} (encoded)"] = buffers[where].view(np.uint8)[8:64]
    return found
