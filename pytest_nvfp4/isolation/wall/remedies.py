"""How to get a part of the wall that the running kernel, or the container around it, does not give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.wall.description import Part

PURPOSES: Final = {
    Part.LANDLOCK: "files: only what a kernel needs can be read, only the job's folder can be written",
    Part.SECCOMP: "system calls: no sockets, no ptrace, no signals to others, no mounts, keys, bpf, perf or io_uring",
    Part.PRIVILEGES: "privileges: no capabilities, also as root, and none by executing a program",
    Part.PROCESSES: "processes: other processes have no number, and all of a kernel's end with it",
    Part.NETWORK: "network: no interface but an unconnected loopback",
    Part.IPC: "shared memory, semaphores and message queues of its own",
    Part.MOUNTS: "/proc without other processes, and a /dev/shm of its own",
}
"""What each part is for."""
_SWITCHES: Final = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
)
"""Files, the value that forbids user namespaces, and the command that permits them (Debian, Ubuntu, Red Hat)."""
_CONTAINERS: Final = ("/.dockerenv", "/run/.containerenv")


def remedy(part: Part) -> str:
    """Return how to get a part on this machine."""
    container = any(Path(file).exists() for file in _CONTAINERS)
    match part:
        case Part.LANDLOCK:
            profile = "; a container needs a seccomp profile that permits landlock_* (Docker 23 or newer)"
            return "boot Linux 5.13 or newer with `lsm=landlock,...` on its command line" + profile * container
        case Part.SECCOMP | Part.PRIVILEGES:
            return "use 64-bit Linux on x86_64 or aarch64, 4.14 or newer, with CONFIG_SECCOMP_FILTER"
        case Part.MOUNTS if container:
            return "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        case _ if container:
            return "start the container with --security-opt seccomp=unconfined, or with --cap-add SYS_ADMIN"
    if os.geteuid():
        for file, forbids, command in _SWITCHES:
            try:
                if Path(file).read_text(encoding="utf-8").strip() == forbids:
                    return command
            except OSError:
                continue
    return "permit user namespaces on this machine (CONFIG_USER_NS, and no security module that forbids them)"
