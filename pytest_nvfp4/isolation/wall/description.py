"""What a wall lets through, as data that a parent process gives to a worker."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pytest_nvfp4.sandbox_mode import Mode, mode_from

WALL_VARIABLE: Final = "NVFP4_WALL"
"""Environment variable with the wall that a worker enters, as JSON."""

PROFILER_PORTS: Final = range(49152, 49162)
"""TCP ports that a profiler and its library use: ``--port`` and ``--max-connections`` of ncu and compute-sanitizer."""


class Part(StrEnum):
    """A mechanism of the running kernel of which a wall is made; it may be missing."""

    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    PRIVILEGES = "privileges"
    PROCESSES = "processes"
    NETWORK = "network"
    IPC = "ipc"
    MOUNTS = "mounts"


NAMESPACES: Final = (Part.PROCESSES, Part.NETWORK, Part.IPC, Part.MOUNTS)
"""The parts that are namespaces."""


class WallError(RuntimeError):
    """A part of the wall is required and missing.

    Attributes:
        missing: The reason for each missing part.
    """

    def __init__(self, missing: dict[Part, str]) -> None:
        self.missing = missing
        reasons = "; ".join(f"{part}: {reason}" for part, reason in missing.items())
        super().__init__(f"the sandbox is required and not complete here: {reasons}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """What a process that runs a kernel's code may do.

    Attributes:
        folder: The job's folder: temporary files, caches and its home directory lie here. It may write here only.
        readable: Further files and folders that it may read and execute, beside the interpreter, its packages and the
            system's libraries.
        listed: Folders whose names it may list, and of whose files it may read only those of ``readable``.
        writable: Further files and folders that it may write.
        gpu: Whether it uses a GPU. The driver's devices stay open then, and no namespaces are used: a GPU's driver
            identifies processes by their numbers, and its daemons are reached through local sockets.
        network: Whether it may use the network.
        profiler: Whether the library of a profiler is in the process: it reaches the profiler, which started the
            process, through abstract local sockets and ``PROFILER_PORTS``.
        memory_bytes: Limit on the private memory of each process.
        file_bytes: Limit on the size of each file that it writes.
        processes: Limit on the number of its processes and threads at once.
        descriptors: Limit on the open descriptors of each process.
        mode: Whether a missing part is an error (``require``), is passed over (``auto``), or no part but the limits and
            the end of all processes is used (``off``).
        without: Parts that are not used, for tests of the others.
    """

    folder: str
    readable: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    gpu: bool = False
    network: bool = False
    profiler: bool = False
    memory_bytes: int | None = None
    file_bytes: int | None = None
    processes: int = 4096
    descriptors: int = 1 << 16
    mode: Mode = "auto"
    without: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that this wall is made of, where the running kernel has them."""
        if self.mode == "off":
            return ()
        unused = {*self.without, *(NAMESPACES if self.gpu else ()), *((Part.NETWORK,) if self.network else ())}
        return tuple(part for part in Part if part not in unused)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a worker that enters this wall; without a mode of its own it has that of this process."""
        mode = self.mode if self.mode != "auto" else mode_from(os.environ)
        return {WALL_VARIABLE: dataclasses.replace(self, mode=mode).to_json()}

    def to_json(self) -> str:
        """Return this wall as text for ``WALL_VARIABLE``."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Wall:
        """Return a wall from the text that ``to_json`` wrote."""
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("readable", "listed", "writable")}
        return cls(**{**fields, **lists, "without": tuple(map(Part, fields["without"]))})
