"""The fork from which a kernel's process comes, before anything of the job is known to either side."""

from __future__ import annotations

import contextlib
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.prctl import set_dumpable
from pytest_nvfp4.isolation.wall import Wall, fork_behind
from pytest_nvfp4.sim.memory.arena import Arena

_ROOM: Final = (1 << 44, 1 << 42, 1 << 40, 1 << 38, 1 << 36)
"""Bytes of address space for device memory, in both processes: the first that this machine permits."""
_BEGIN: Final = 1 << 44
"""Where it begins, if nothing is there: host code that was recorded holds addresses (``conversation``)."""


@dataclass(frozen=True, slots=True)
class ForkedKernel:
    """A kernel's process that waits for its first command.

    Attributes:
        pid: Number of a process that ends as it does.
        commands, requests: The sockets to it.
        room: Address space of the device, which has no memory in the kernel's process.
    """

    pid: int
    commands: socket.socket
    requests: socket.socket
    room: tuple[int, int]


def _reserved() -> tuple[int, int]:
    for size in _ROOM[:-1]:
        with contextlib.suppress(OSError):  # a limit on address space (RLIMIT_AS), or a processor with fewer bits
            return Arena(shared=True).reserve(size, at=_BEGIN)
    return Arena(shared=True).reserve(_ROOM[-1], at=_BEGIN)


def fork_kernel(wall: Wall, *, folder: Path) -> ForkedKernel:
    """Fork the process in which a kernel's code will run, behind a wall; only this process returns.

    Args:
        wall: The wall of the job. The kernel may not write what this process writes.
        folder: The job's folder.
    """
    room = _reserved()
    writable = [folder / "source", folder / "ptx"]
    for place in writable:
        place.mkdir(exist_ok=True)
    commands, own_commands = socket.socketpair()
    requests, own_requests = socket.socketpair()
    pid = fork_behind(
        replace(wall, writable=tuple(map(str, writable))), keep=[own_commands.fileno(), own_requests.fileno()]
    )
    if not pid:
        commands.detach()  # closed by the fork
        requests.detach()
        del sys.argv[1:], sys.orig_argv[1:]
        from pytest_nvfp4.device.worker.kernel_side import serve
        from pytest_nvfp4.machine.wire import Channel

        serve(Channel(own_commands), Channel(own_requests), room)
    own_commands.close()
    own_requests.close()
    set_dumpable(False)  # no other process of this user reads or writes the memory of this one
    return ForkedKernel(pid, commands, requests, room)
