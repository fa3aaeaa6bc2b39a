"""Make the simulator the ``device="cuda"`` of this process, so that the host code of a kernel file runs unchanged.

``simulate`` redirects torch and the compiled host code of CuTe DSL (``host.redirect``, ``host.torch_cuda``), and every
launch is executed before the call returns. ``CUTE_DSL_*`` must be set before cutlass is imported
(``host.redirect.environment``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.host import redirect, torch_cuda
from pytest_nvfp4.host.compile_cache import CompileCache
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Lazy
from pytest_nvfp4.sim.run.asynchronous import schedule as make_schedule
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session
from pytest_nvfp4.sim.sync.protocol_log import ProtocolLog


@contextlib.contextmanager
def simulate(
    *,
    arch: str = "sm_100a",
    processes: int = 1,
    asynchronous: Asynchronous | None = None,
    schedule: str | int = "eager",
    races: bool = False,
    race_warnings: bool = False,
    protocol: bool = False,
    ring_ctas: int = 0,
    sms: int | None = None,
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
        protocol: Whether to record the protocol of each launch (see ``device.job.Simulating``).
        ring_ctas: Largest number of CTAs of a launch whose operations on mbarriers are logged.
        sms: SMs of the device, if not those of the product.
        compiled: Modules that need not be compiled again.

    Raises:
        ValueError: The schedule does not exist.
        HostSideError: The redirection is already in place, torch finds a real GPU, or the environment is not set.
    """
    model = for_arch(arch) if sms is None else replace(for_arch(arch), sm_count=sms, max_active_clusters={})
    machine = Machine(model=model, asynchronous=asynchronous or make_schedule(schedule))
    detector = Detector(warnings=race_warnings) if (races or race_warnings) and not protocol else None
    machine.monitor = detector
    memory = SimulatedMemory(machine.memory)
    session = Session(machine, memory, processes=processes, log_ctas=sys.maxsize if protocol else ring_ctas)
    if protocol:
        # A wait that fails once shows where a kernel waits again, after a test that did not wait.
        machine.asynchronous = Lazy(patient=False) if schedule == "lazy" else machine.asynchronous
        machine.monitor = cast("Detector", ProtocolLog())
    with redirect.install(session.launch, device=machine.model, memory=memory, compiled=compiled) as side:
        session.streams = side.streams
        if detector is not None:
            detector.followed = True
            session.order = HostOrder(side.streams, machine.memory)
        with torch_cuda.install(device=machine.model, launches=side.launches, memory=memory):
            yield session
