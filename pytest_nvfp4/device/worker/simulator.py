"""A simulated device, and how to make it the ``device="cuda"`` of this process.

Every launch is executed before the call returns. ``CUTE_DSL_*`` must be set before cutlass is imported
(``host.redirect.environment``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from pytest_nvfp4.device.worker.int8_product import int8_product
from pytest_nvfp4.driver.device_model import DeviceModel, for_arch
from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Lazy
from pytest_nvfp4.sim.run.asynchronous import schedule as make_schedule
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.session import Session
from pytest_nvfp4.sim.sync.protocol_log import ProtocolLog

if TYPE_CHECKING:
    from pytest_nvfp4.host.compile_cache import CompileCache
    from pytest_nvfp4.sim.debug.debugger import Debugger


@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """What a simulated device is, and what it looks for.

    Attributes:
        arch: Architecture for which kernels are compiled, which determines the device's properties.
        processes: Number of processes that may share a large launch.
        asynchronous: The schedule, if not that of ``schedule``.
        schedule: ``eager``, ``lazy``, or the seed of a random one.
        races: Whether to search for races by happens-before, within launches and between the work of streams.
        race_warnings: See ``device.job.Simulating`` (``races.tensor_order``, ``fence.mbarrier_init``).
        protocol: Whether to record the protocol of each launch (see ``device.job.Simulating``).
        recording: Whether to record launches for the model of their times (see ``device.job.Simulating``).
        sampled: Whether only some clusters run for that, without data.
        ring_ctas: Largest number of CTAs of a launch whose operations on mbarriers are logged.
        sms: SMs of the device, if not those of the product.
        detailed: Whether the detail of launches is recorded (see ``device.job.Simulating``).
        debugger: What stops warps, if anything does.
    """

    arch: str = "sm_100a"
    processes: int = 1
    asynchronous: Asynchronous | None = None
    schedule: str | int = "eager"
    races: bool = False
    race_warnings: bool = False
    protocol: bool = False
    recording: bool = False
    sampled: bool = False
    ring_ctas: int = 0
    sms: int | None = None
    detailed: bool = False
    debugger: Debugger | None = None

    @property
    def model(self) -> DeviceModel:
        """The device."""
        model = for_arch(self.arch)
        return model if self.sms is None else replace(model, sm_count=self.sms, max_active_clusters={})


def new_session(settings: SimulatorSettings, *, room: tuple[int, int] | None = None) -> Session:
    """Return a new simulated device with its streams.

    Args:
        settings: See ``SimulatorSettings``.
        room: Reserved address space for its memory, from an address to another.

    Raises:
        ValueError: The schedule does not exist.
    """
    asynchronous = settings.asynchronous or make_schedule(settings.schedule)
    machine = Machine(model=settings.model, asynchronous=asynchronous)
    machine.int8_product = int8_product
    looks = (settings.races or settings.race_warnings) and not settings.protocol
    detector = Detector(warnings=settings.race_warnings) if looks else None
    machine.monitor = detector
    session = Session(
        machine,
        SimulatedMemory(machine.memory, room=room),
        processes=settings.processes,
        log_ctas=sys.maxsize if settings.protocol else settings.ring_ctas,
        detailed=settings.detailed,
    )
    session.streams = Streams()
    if settings.protocol:
        # A wait that fails once shows where a kernel waits again, after a test that did not wait.
        machine.asynchronous = Lazy(patient=False) if settings.schedule == "lazy" else machine.asynchronous
        machine.monitor = ProtocolLog()
    if settings.recording:
        from pytest_nvfp4.model.recorder import Recorder
        from pytest_nvfp4.model.recorder_dataless import DatalessRecorder

        machine.monitor = DatalessRecorder(sampled=True) if settings.sampled else Recorder()
    if settings.debugger is not None:
        machine.debugger, machine.monitor = settings.debugger, settings.debugger.log
    if detector is not None:
        detector.followed = True
        session.order = HostOrder(session.streams, machine.memory)
    return session


@contextlib.contextmanager
def simulate(
    *,
    built: CompileCache | None = None,
    on_launch: Callable[[Launch], None] | None = None,
    unraised: IO[str] | None = None,
    **settings: Any,
) -> Iterator[Session]:
    """Redirect ``device="cuda"`` and the launches of compiled kernels of this process to a simulator in it.

    A worker runs a kernel in another process than the simulator (``kernel_process``); this is for programs whose code
    is trusted, or whose result is no verdict.

    Args:
        built: Extensions that need not be built again.
        on_launch: Executes each launch, in place of the session.
        unraised: File of the exception that a stand-in has raised and the host code not yet.
        settings: Fields of ``SimulatorSettings``.

    Raises:
        ValueError: The schedule does not exist.
        HostSideError: The redirection is already in place, torch finds a real GPU, or the environment is not set.
    """
    from pytest_nvfp4.host import redirect, torch_cuda
    from pytest_nvfp4.host.device_side import local

    session = new_session(SimulatorSettings(**settings))
    model = session.machine.model
    side = local(
        on_launch or session.launch, memory=session.memory, streams=session.streams, variables=session.variables
    )
    with (
        redirect.install(side, device=model, built=built, unraised=unraised),
        torch_cuda.install(device=model, side=side),
    ):
        yield session
