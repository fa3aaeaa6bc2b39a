"""The device of a command: one of this machine, or of a remote that is released, and its cost shown, at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.used_remote import stopping

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.remote.base import Remote
    from pytest_nvfp4.device.remote.options import RemoteOptions


@dataclass(frozen=True, slots=True)
class Opened:
    """A device, and the remote that it is on; None for one of this machine."""

    device: Device
    place: Remote | None = None


@contextmanager
def opened(name: str, options: RemoteOptions, folder: Path, *, what: str) -> Iterator[Opened]:
    """Yield a device of this machine or of a remote, whose cost is shown before and after.

    Args:
        name: A device (``device.select``), or a remote.
        options: Options of a remote.
        folder: Folder for files of the device.
        what: What takes at most ``options.longest_s`` there, for the cost.

    Raises:
        InputError: There is no such device or remote, or it is not available.
    """
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.remote.base import RemoteError, dollars
    from pytest_nvfp4.device.remote.device import RemoteDevice
    from pytest_nvfp4.device.remote.gpus import capability_of
    from pytest_nvfp4.device.remote.registry import remote as remote_of
    from pytest_nvfp4.device.remote.session import RemoteSession
    from pytest_nvfp4.device.select import known_names, select

    if name in known_names():
        try:
            chosen = select(name, folder=folder)
        except DeviceUnavailableError as error:
            raise InputError(f"{error}; or give --device modal or ssh:HOST") from error
        yield Opened(chosen)
        return
    try:
        capability = capability_of(options)
        place = remote_of(name, options)
        price = place.cost().usd_per_hour or options.gpu_price
        if price is not None and options.longest_s is not None:
            most = dollars(price * options.longest_s / 3600)
            output.note(f"{name}: ${price:g} an hour, at most about {most} for one {what}")
        session = RemoteSession(
            place,
            containers=1,
            timeout_s=options.timeout_s,
            max_cost=options.max_cost,
            usd_per_hour=options.gpu_price,
        )
    except RemoteError as error:
        raise InputError(f"--device {name}: {error}") from error
    with stopping(name, place, close=session.close):
        yield Opened(RemoteDevice(session, name=name.partition(":")[0], gpu=options.gpu, capability=capability), place)
