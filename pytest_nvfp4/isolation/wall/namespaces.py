"""Namespaces (namespaces(7)): process numbers, network, IPC and mounts that no other process shares."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation import limits
from pytest_nvfp4.isolation.prctl import set_dumpable
from pytest_nvfp4.isolation.wall import libc
from pytest_nvfp4.isolation.wall.description import NAMESPACES, Part

_FLAGS: Final[Mapping[Part, int]] = {
    Part.PROCESSES: 0x20000000,
    Part.NETWORK: 0x40000000,
    Part.IPC: 0x08000000,
    Part.MOUNTS: 0x00020000,
}
_NEW_USER: Final = 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = (
    *(1, 2, 4, 8, 1 << 5, 1 << 12),
    *(1 << 14, 1 << 19),
)
_PID_MAX: Final = Path("/proc/sys/kernel/pid_max")
_RESERVED_PIDS: Final = 300
"""Numbers that the kernel passes over when it has used all; they cannot be counted on."""


def leave(wanted: Collection[Part]) -> dict[Part, str]:
    """Move this process into new namespaces; its next child is process 1 of a new PID namespace.

    Privileges over the system allow it at once; other users need a user namespace of their own first, in which they
    keep their number.

    Returns:
        The reason for each part that is missing.
    """
    wanted = [part for part in NAMESPACES if part in wanted]
    if not wanted:
        return {}
    if libc.machine() is None:
        return dict.fromkeys(wanted, "this system is not 64-bit Linux on x86_64 or aarch64")
    user, group = os.geteuid(), os.getegid()
    try:
        libc.unshare(sum(_FLAGS[part] for part in wanted))
    except OSError:
        try:
            libc.unshare(_NEW_USER)
            _map_ids(user, group)
        except OSError as error:
            return dict.fromkeys(wanted, f"no user namespace ({error.strerror})")
    else:
        return {}
    missing = {}
    for part in wanted:
        try:
            libc.unshare(_FLAGS[part])
        except OSError as error:
            missing[part] = error.strerror or str(error)
    return missing


def _map_ids(user: int, group: int) -> None:
    set_dumpable(True)  # otherwise these files belong to root
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")


def mount_own(*, processes: int, writable: Collection[str]) -> bool:
    """Mount a ``/proc`` of this PID namespace and an empty ``/dev/shm``, and make all else but ``writable`` read-only.

    Landlock does not cover modes, owners, times and other attributes of files; a mount that is read-only does. As many
    ``processes`` get numbers, where the running kernel counts them for each namespace.

    Requires namespaces for mounts and processes. A container may forbid either mount (it hides parts of ``/proc``).

    Returns:
        Whether ``/proc`` is mounted.
    """
    try:
        libc.mount("none", "/", "", _MS_REC | _MS_SLAVE)
    except OSError:
        return False
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    with contextlib.suppress(OSError):
        libc.mount("tmpfs", "/dev/shm", "tmpfs", flags, "mode=1777,size=50%")
    try:
        libc.mount("proc", "/proc", "proc", flags)
    except OSError:
        return False
    with contextlib.suppress(OSError, ValueError):
        _limit_numbers(processes)
    limits.prefer_as_victim()
    with contextlib.suppress(OSError):  # root could write settings of the whole system
        libc.mount("none", "/proc", "", flags | _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    with contextlib.suppress(OSError):  # mount_setattr is of Linux 5.12
        _make_read_only([*_topmost(writable), "/dev/shm"])
    return True


def _topmost(paths: Collection[str]) -> list[str]:
    """Return the paths that lie below no other one: a file cannot be renamed from one mount to another."""
    real = sorted({os.path.realpath(path) for path in paths if Path(path).exists()})
    return [path for path in real if not any(path != other and Path(path).is_relative_to(other) for other in real)]


def _make_read_only(writable: Collection[str]) -> None:
    """Make all mounts of this namespace read-only except those of some folders, which become mounts of their own."""
    for path in writable:
        libc.mount(path, path, "", _MS_BIND | _MS_REC)
    libc.mount_setattr("/", recursive=True, read_only=True)
    for path in writable:
        libc.mount_setattr(path, recursive=True, read_only=False)
    with contextlib.suppress(OSError):
        os.chdir(Path.cwd())  # the same folder, as it is mounted now


def _limit_numbers(processes: int) -> None:
    """Bound the process numbers of this PID namespace: the limit of a user's processes does not bind root."""
    release = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
    if release >= (6, 14):
        _PID_MAX.write_text(str(_RESERVED_PIDS + processes), encoding="utf-8")
