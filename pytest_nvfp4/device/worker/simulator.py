"""Make the simulator the ``device="cuda"`` of this process, so that the host code of a kernel file runs unchanged.

``simulate`` redirects torch and the compiled host code of CuTe DSL (``host.redirect``, ``host.torch_cuda``), and every
launch is executed before the call returns. ``CUTE_DSL_*`` must be set before cutlass is imported
(``host.redirect.environment``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.host import redirect, torch_cuda
from pytest_nvfp4.host.compile_cache import CompileCache
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.asynchronous import schedule as make_schedule
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session


@contextlib.contextmanager
def simulate(
    *,
    arch: str = "sm_100a",
    processes: int = 1,
    asynchronous: Asynchronous | None = None,
    schedule: str | int = "eager",
    races: bool = False,
    race_warnings: bool = False,
    compiled: CompileCache | None = None,
) -> Iterator[Session]:
    """Redirect ``device="cuda"`` and the launches of compiled kernels to the simulator.

    Args:
        arch: Architecture for which kernels are compiled, which determines the device's properties.
        processes: Number of processes that may share a large launch.
        asynchronous: The schedule, if not that of ``schedule``.
        schedule: ``eager``, ``lazy``, or the seed of a random one.
        races: Whether to search for races by happens-before, within launches and between the work of streams.
        race_warnings: See ``device.job.Simulating`` (``races.tensor_order``, ``fence.mbarrier_init``).
        compiled: Modules that need not be compiled again.

    Raises:
        ValueError: The schedule does not exist.
        HostSideError: The redirection is already in place, torch finds a real GPU, or the environment is not set.
    """
    machine = Machine(model=for_arch(arch), asynchronous=asynchronous or make_schedule(schedule))
    detector = Detector(warnings=race_warnings) if races or race_warnings else None
    machine.monitor = detector
    memory = SimulatedMemory(machine.memory)
    session = Session(machine, memory, processes=processes)
    with redirect.install(session.launch, device=machine.model, memory=memory, compiled=compiled) as side:
        session.streams = side.streams
        if detector is not None:
            detector.followed = True
            session.order = HostOrder(side.streams, machine.memory)
        with torch_cuda.install(device=machine.model, launches=side.launches, memory=memory):
            yield session
