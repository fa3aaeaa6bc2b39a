"""Where kernels are measured: a GPU of this machine or of a remote, which runs batches one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from pytest_nvfp4.device.base import Device, DeviceUnavailableError
from pytest_nvfp4.device.compiled_modules import CompiledModules
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Cost, RemoteError
from pytest_nvfp4.device.remote.executor import describe_place, execute_batch
from pytest_nvfp4.device.remote.gpus import capability_of
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.device.remote.registry import remote
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.select import known_names, select
from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.protocols import InfrastructureError

_WAIT_S: Final = 900.0
"""Seconds for a remote to find a machine and to start it."""
_FREE: Final = ("ssh",)
"""Remotes that are the user's own machines, and cost nothing."""
_NO_CLOCK: Final = ("sim", "none", "auto")


class Place(Protocol):
    """A device in one allocation.

    Attributes:
        capability: Compute capability of the GPU.
        hourly_usd: Its price; 0 if it costs nothing.
        idle_s: Seconds that it is paid for after its last batch.
    """

    capability: tuple[int, int]
    hourly_usd: float
    idle_s: float

    def run(self, batch: Batch, *, limit_s: float) -> BatchResult:
        """Run a batch within a time. Raises InfrastructureError and StoppedError."""
        ...

    def usd(self) -> float:
        """Return what it has cost so far in dollars."""
        ...


def container_price(name: str, options: RemoteOptions) -> float:
    """Return the price of a container of a remote in dollars an hour; 0 for the user's own machine.

    Contacts nothing. Raises InfrastructureError if there is no such remote, or no ceiling could hold for it.
    """
    try:
        usd = remote(name, options).cost().usd_per_hour
    except RemoteError as error:
        raise InfrastructureError(f"{name}: {error}") from error
    if usd is None and name.partition(":")[0] not in _FREE:
        raise InfrastructureError(
            f"the price of {name} is unknown, so that budget.dollars could not hold; choose another"
        )
    return usd or 0.0


@contextmanager
def open_place(config: LoopConfig, *, folder: Path) -> Iterator[Place]:
    """Open the device of a configuration, and release it at the end.

    Args:
        config: The configuration.
        folder: Folder for files of jobs.

    Raises:
        InfrastructureError: There is no such device or remote, or it cannot be used.
    """
    name, section = config.device.name, config.device
    if name in _NO_CLOCK:
        raise InfrastructureError(f"device.name = {name!r} has no clock; name a GPU: local, or a remote such as modal")
    if name in known_names():
        try:
            device = select(name, folder=folder)
            if isinstance(device, LocalDevice):
                device.modules = CompiledModules(folder / "modules")
            yield LocalPlace(device, folder)
        except DeviceUnavailableError as error:
            raise InfrastructureError(f"device.name = {name!r}: {error}") from error
        return
    longest_s = max(section.smoke_s, section.candidate_s, section.final_s)
    gpu = {"gpu": section.gpu} if section.gpu else {}
    options = RemoteOptions(timeout_s=longest_s + _WAIT_S, longest_s=longest_s, **gpu)  # type: ignore[arg-type]
    price = container_price(name, options)
    try:
        chosen = remote(name, options)
        capability = capability_of(options)
        idle_s = chosen.cost().idle_s
        together_s = section.smoke_s + section.candidate_s + section.final_s + idle_s
        session = RemoteSession(
            chosen,
            containers=1,
            timeout_s=options.timeout_s,
            max_cost=price * together_s / 3600 or None,
            usd_per_hour=price or None,
        )
    except RemoteError as error:
        raise InfrastructureError(f"device.name = {name!r}: {error}") from error
    try:
        yield RemotePlace(session, capability, price, idle_s)
    finally:
        session.close()
        chosen.stop()


class LocalPlace:
    """A GPU of this machine; see `Place`."""

    hourly_usd = 0.0
    idle_s = 0.0

    def __init__(self, device: Device, folder: Path) -> None:
        described = device.describe()
        if described.simulated:
            raise DeviceUnavailableError("it simulates, and has no clock")
        self.capability = described.capability
        self._device, self._folder = device, folder

    def run(self, batch: Batch, *, limit_s: float) -> BatchResult:
        """Run a batch within a time. Raises InfrastructureError and StoppedError."""
        until = time.monotonic() + limit_s

        def run(job: Job, folder: Path) -> Result:
            cancellation.check()
            left = until - time.monotonic()
            if left <= 0:
                raise InfrastructureError(f"not measured within {limit_s:g} s: raise the limit of the stage")
            return self._device.run(job.model_copy(update={"deadline_s": min(job.deadline_s, left)}), folder=folder)

        try:
            return execute_batch(batch, run=run, place=describe_place(container=self._device.name))
        except DeviceUnavailableError as error:
            raise InfrastructureError(str(error)) from error

    def usd(self) -> float:
        """Return 0: this machine costs nothing."""
        return 0.0


class RemotePlace:
    """A GPU of a remote; see `Place`."""

    def __init__(self, session: RemoteSession, capability: tuple[int, int], hourly_usd: float, idle_s: float) -> None:
        self._session = session
        self.capability, self.hourly_usd, self.idle_s = capability, hourly_usd, idle_s

    def run(self, batch: Batch, *, limit_s: float) -> BatchResult:
        """Run a batch within a time. Raises InfrastructureError and StoppedError."""
        until = time.monotonic() + limit_s + _WAIT_S

        def check() -> None:
            cancellation.check()
            if time.monotonic() > until:
                raise InfrastructureError(f"the remote returned nothing within {limit_s + _WAIT_S:g} s")

        (request,) = self._session.add([batch], urgent=True)
        try:
            return request.wait(on_wait=check)
        except RemoteError as error:
            raise InfrastructureError(str(error)) from error

    def usd(self) -> float:
        """Return what the session has cost so far in dollars."""
        cost: Cost = self._session.cost
        return cost.usd or 0.0
