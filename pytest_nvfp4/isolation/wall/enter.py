"""Enter a wall: what a process does to itself, in this order, before it runs a kernel's code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.isolation import limits
from pytest_nvfp4.isolation.process_tree import ancestors
from pytest_nvfp4.isolation.wall import files, landlock, libc, privileges, seccomp
from pytest_nvfp4.isolation.wall.description import NAMESPACES, PROFILER_PORTS, Part, Wall, WallError
from pytest_nvfp4.sandbox_mode import INSIDE_VARIABLE


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around this process already.

    Attributes:
        missing: The reason for each namespace that it should have and has not.
        own_proc: Whether ``/proc`` shows only processes of its own PID namespace.
    """

    missing: dict[Part, str]
    own_proc: bool = False


def enter(wall: Wall, around: Surroundings | None = None) -> dict[Part, str]:
    """Put this process behind a wall, for ever; it must have one thread.

    It stays in its namespaces: a process without ``around`` counts as one that has none of its own
    (``supervisor.fork_behind`` gives it some). Its temporary files, caches and home directory move to the wall's
    folder.

    Returns:
        The reason for each part that is missing.

    Raises:
        WallError: A part is missing that the wall requires.
        OSError: The wall's folder cannot be written.
    """
    started = dict(os.environ)
    _move_home(wall)
    limits.apply(
        memory_bytes=wall.memory_bytes,
        file_bytes=wall.file_bytes,
        processes=wall.processes,
        descriptors=wall.descriptors,
    )
    if wall.mode == "off":
        return {}
    os.environ[INSIDE_VARIABLE] = "1"
    around = around or Surroundings(dict.fromkeys(NAMESPACES, "this process is in those of its parent"))
    missing = {part: reason for part, reason in around.missing.items() if part in wall.parts}
    inside = Part.PROCESSES in wall.parts and Part.PROCESSES not in missing
    above = [] if inside else _above()

    def attempt(part: Part, act: Callable[[], None]) -> None:
        if part in wall.parts:
            try:
                act()
            except OSError as error:
                missing[part] = error.strerror or str(error)

    attempt(Part.PRIVILEGES, privileges.drop)
    if libc.machine() is not None:
        libc.forbid_new_privileges()
    rules = list(files.rules(wall, started, own_proc=around.own_proc))
    ports = PROFILER_PORTS if wall.profiler else ()
    attempt(Part.LANDLOCK, lambda: landlock.restrict(rules, network=wall.network, ports=ports))
    calls = seccomp.CallRules(
        sockets=_sockets(wall),
        private_ipc=Part.IPC in wall.parts and Part.IPC not in missing,
        protected=tuple(above),
    )
    attempt(Part.SECCOMP, lambda: seccomp.restrict(calls))
    if missing and wall.mode == "require":
        raise WallError(missing)
    return missing


def _sockets(wall: Wall) -> tuple[int, ...]:
    if wall.network:
        return seccomp.NETWORK_SOCKETS
    if wall.profiler:
        return seccomp.PROFILER_SOCKETS
    return seccomp.LOCAL_SOCKETS if wall.gpu else ()


def _above() -> list[int]:
    """Return the processes above this one, and the leaders of their groups."""
    above = ancestors(os.getpid())
    groups = []
    for pid in above:
        try:
            groups.append(os.getpgid(pid))
        except OSError:
            continue
    return [pid for pid in dict.fromkeys([*above, *groups]) if pid > 1][:50] or [1]


def _move_home(wall: Wall) -> None:
    homes = files.homes(Path(wall.folder))
    if wall.mode == "off":
        homes = {name: homes[name] for name in ("TMPDIR", "TEMP", "TMP")}
    for folder in dict.fromkeys(homes.values()):
        Path(folder).mkdir(parents=True, exist_ok=True)
    os.environ.update(homes)
    tempfile.tempdir = None  # a preloaded module may have computed it
