"""Choice of the device that runs kernels, and the one place that skips or fails a check without a device."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_nvfp4.plugin.device_options import DeviceOptions
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.remote import RemoteRun
from pytest_nvfp4.plugin.state import RUN, is_xdist_worker, xdist_worker
from pytest_nvfp4.temporary import TemporaryFolder
from pytest_nvfp4.text import printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import KernelSpec

NOT_RUN = "not run: "
"""Start of the reason of a check that was skipped because it had no device."""


class NoDeviceError(RuntimeError):
    """No device can run a kernel; the message is the reason."""


class Devices:
    """The devices of a run, each made when it is first required; a remote replaces the device."""

    def __init__(self, config: pytest.Config, options: DeviceOptions, remote: RemoteRun | None) -> None:
        self._config = config
        self.options = options
        self.remote = remote

    @cached_property
    def folder(self) -> Path:
        """Temporary folder of this run; it is removed when the run ends."""
        folder = TemporaryFolder("pytest")
        self._config.add_cleanup(folder.remove)
        return folder.path

    @property
    def jobs(self) -> Path:
        """Folder for the files of jobs."""
        return self.folder / "jobs"

    @property
    def shared(self) -> bool:
        """Whether other test processes of this run work on the same items (xdist)."""
        return is_xdist_worker(self._config)

    @cached_property
    def simulator(self) -> Device:
        """The simulator, of this machine or of a remote. Here it reuses what the traces of this run compiled."""
        from pytest_nvfp4.device.sim import SimDevice

        if self.remote is not None and self.remote.request.options.simulates:
            return self.remote.device
        run = self._config.stash[RUN]

        def copy_compiled(kernel: KernelSpec, base: Path, into: Path) -> bool:
            files = {str(base / file.path): file.sha256 for file in kernel.files}
            return run.tracer.copy_compiled(files, arch=kernel.arch, options=kernel.compile_options, into=into)

        return SimDevice(compiled=copy_compiled)

    @property
    def traces_at_once(self) -> int | None:
        """Compiles that a remote runs at once; None if this machine compiles."""
        if self.remote is None or not self.remote.request.traces:
            return None
        return self.remote.request.options.containers

    @property
    def simulations_at_once(self) -> int | None:
        """Simulations that a remote runs at once; None if this machine simulates."""
        if self.remote is None or not self.remote.request.options.simulates:
            return None
        return self.remote.request.options.containers

    @cached_property
    def _choice(self) -> Device | NoDeviceError:
        from pytest_nvfp4.device.base import DeviceUnavailableError
        from pytest_nvfp4.device.select import select
        from pytest_nvfp4.device.sim import SimDevice

        if self.remote is not None:
            return self.remote.device
        try:
            device = select(self.options.device, folder=self.folder, worker=xdist_worker(self._config))
        except DeviceUnavailableError as error:
            return NoDeviceError(str(error))
        return self.simulator if isinstance(device, SimDevice) else device

    def choose(self, arch: str | None = None) -> Device:
        """Return the device of the run, which runs code for an architecture if one is given.

        With ``--nvfp4-device=auto`` the simulator replaces a GPU that cannot run the code.

        Raises:
            NoDeviceError: There is no device, or it cannot run the code.
        """
        if isinstance(self._choice, NoDeviceError):
            raise NoDeviceError(str(self._choice))
        device = self._choice
        unsupported = None if arch is None else _unsupported(device, arch)
        if arch is not None and unsupported and self.options.device == "auto" and device is not self.simulator:
            device, unsupported = self.simulator, self.simulator.unsupported(arch)
        if unsupported is not None:
            raise NoDeviceError(unsupported)
        return device

    def simulates(self, arch: str) -> bool:
        """Return whether the device of the run for an architecture is the simulator of this machine."""
        try:
            return self.remote is None and self.choose(arch) is self.simulator
        except NoDeviceError:
            return False

    @property
    def local_hardware(self) -> bool:
        """Whether the device is hardware of this machine, which must be idle while a kernel is timed on it."""
        if self.remote is not None or isinstance(self._choice, NoDeviceError):
            return False
        return self._choice is not self.simulator

    def device(self, arch: str | None = None) -> Device:
        """Return the device, or the one for an architecture; without one, skip or fail the calling test.

        Raises:
            CheckFailure: The remote cannot be used.
        """
        try:
            chosen = self.choose(arch)
        except NoDeviceError as error:
            self.not_run(str(error))
        if self.remote is not None and chosen is self.remote.device and self.remote.unusable is not None:
            raise CheckFailure(f"not run on {self.options.device}: {self.remote.unusable}")
        return chosen

    def require_simulator(self, arch: str) -> Device:
        """Return the simulator; if it cannot run code for the architecture, skip or fail the calling test."""
        if (unsupported := self.simulator.unsupported(arch)) is not None:
            self.not_run(unsupported)
        return self.simulator

    def no_clock(self, arch: str) -> str:
        """Return why a kernel that is simulated is not timed."""
        device = self.device()
        unsupported = None if device is self.simulator else _unsupported(device, arch)
        return f"{unsupported}, and the simulator has no clock" if unsupported else "the simulator has no clock"

    def not_run(self, reason: str) -> NoReturn:
        """Skip the calling test because it has no device; fail it with ``--nvfp4-require-device``."""
        if self.options.require:
            raise CheckFailure(f"{NOT_RUN}{reason} (--nvfp4-require-device)")
        pytest.skip(printed(f"{NOT_RUN}{reason}"))


def _unsupported(device: Device, arch: str) -> str | None:
    """Return why a device cannot run code for an architecture, or cannot run anything; None if it can."""
    from pytest_nvfp4.device.base import DeviceUnavailableError

    try:
        return device.unsupported(arch)
    except DeviceUnavailableError as error:
        return str(error)


DEVICES = pytest.StashKey[Devices]()
