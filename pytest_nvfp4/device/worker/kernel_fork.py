"""The fork from which a kernel's process comes, before anything of the job is known to either side."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.prctl import set_dumpable
from pytest_nvfp4.isolation.wall import Wall, fork_behind
from pytest_nvfp4.sim.memory.arena import Arena

_ROOM: Final = 1 << 44
"""Bytes of address space for device memory, in both processes."""


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


def fork_kernel(wall: Wall, *, folder: Path) -> ForkedKernel:
    """Fork the process in which a kernel's code will run, behind a wall; only this process returns.

    Args:
        wall: The wall of the job. The kernel may not write what this process writes.
        folder: The job's folder.
    """
    room = Arena(shared=True).reserve(_ROOM)
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
