"""A process whose ``device="cuda"`` is the simulator: the host code of the kernel file runs as it is.

`simulate` redirects torch and the compiled host code of CuTe DSL (`host.redirect`, `host.torch_cuda`) and executes
every launch before the call returns. CUTE_DSL_* must be set before cutlass is imported (`host.redirect.environment`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_nvfp4.driver.device_model import DeviceModel, for_arch
from pytest_nvfp4.host import redirect, torch_cuda
from pytest_nvfp4.host.compiled import CompiledModules
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.asynchronous import schedule as make_schedule
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session

__all__ = ["simulate"]


@contextlib.contextmanager
def simulate(
    *,
    arch: str = "sm_100a",
    model: DeviceModel | None = None,
    processes: int = 1,
    asynchronous: Asynchronous | None = None,
    schedule: str | int = "eager",
    races: bool = False,
    race_warnings: bool = False,
    compiled: CompiledModules | None = None,
) -> Iterator[Session]:
    """Make ``device="cuda"`` and the launches of compiled kernels land in the simulator.

    Args:
        arch: What kernels are compiled for; it decides what host code is told of the device.
        model: The device, if not the architecture's own.
        processes: Processes that may share a large launch.
        asynchronous: The schedule, if not that of the next argument.
        schedule: ``eager``, ``lazy``, or the seed of a random one.
        races: Look for races, by happens-before: inside launches, and between the work of different streams.
        race_warnings: Tell also of what official kernels leave out (``races.tensor_order``, ``fence.mbarrier_init``).
        compiled: Modules that need not be compiled again.

    Raises:
        ValueError: no such schedule.
        HostSideError: the redirection is already in place, torch sees a real GPU, or the environment is not set.
    """
    machine = Machine(model=model or for_arch(arch), asynchronous=asynchronous or make_schedule(schedule))
    detector = Detector(warnings=race_warnings) if races or race_warnings else None
    machine.monitor = detector
    memory = SimulatedMemory(machine.memory)
    session = Session(machine, memory, processes=processes)
    with redirect.install(session.launch, device=machine.model, memory=memory, compiled=compiled) as side:
        if detector is not None:
            detector.followed = True
            session.order = HostOrder(side.streams, machine.memory)
        with torch_cuda.install(device=machine.model, launches=side.launches, memory=memory):
            yield session
