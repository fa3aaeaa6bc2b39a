"""The files that every process behind a wall needs: the interpreter, its packages, the system's libraries."""

from __future__ import annotations

import os
import pwd
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.wall import landlock
from pytest_nvfp4.isolation.wall.description import Wall

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_SYSTEM: Final = ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store"]
_CONFIGURATION: Final = """
    ld.so.cache ld.so.conf ld.so.conf.d ld.so.preload localtime timezone locale.alias locale.conf passwd group
    nsswitch.conf host.conf hosts resolv.conf gai.conf services protocols mime.types os-release lsb-release
    debian_version alternatives ssl pki ca-certificates ca-certificates.conf crypto-policies python3 python3.11
    fonts OpenCL vulkan nvidia
""".split()  # noqa: SIM905 - a list of words
"""Names below ``/etc``: dynamic loading, locales, names of users and hosts, certificates, drivers. No keys."""
_DEVICES: Final = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
_MACHINE: Final = ["/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage", "/sys/module/nvidia"]
_OWN_PROC: Final = [
    "self/",
    "cpuinfo",
    "meminfo",
    "stat",
    "sys",
    "version",
    "loadavg",
    "uptime",
    "filesystems",
    "devices",
    "modules",
    "driver",
]
_GPU: Final = ("/sys", "/proc/driver", "/proc/devices", "/proc/modules", "/run/nvidia-persistenced")
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/dri")
_LIBRARY_VARIABLES: Final = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")

_HOME_VARIABLES: Final = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "TEMP": "tmp",
    "TMP": "tmp",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
    "XDG_RUNTIME_DIR": "home/.run",
    "CUDA_CACHE_PATH": "home/.cache/cuda",
    "CUTE_DSL_CACHE_DIR": "home/.cache/cute",
    "TRITON_HOME": "home",
    "TRITON_CACHE_DIR": "home/.cache/triton",
    "TORCH_HOME": "home/.cache/torch",
    "TORCH_EXTENSIONS_DIR": "home/.cache/torch-extensions",
    "TORCHINDUCTOR_CACHE_DIR": "home/.cache/inductor",
    "MPLCONFIGDIR": "home/.config/matplotlib",
    "NUMBA_CACHE_DIR": "home/.cache/numba",
    "PYTHONPYCACHEPREFIX": "",
    "PYTHONUSERBASE": "home/.local",
}
"""Folders of a process behind a wall, below the job's folder; an empty one is left unset."""


def homes(folder: Path) -> dict[str, str]:
    """Return the variables that name folders for temporary files, caches and settings below a job's folder."""
    return {name: str(folder / place) for name, place in _HOME_VARIABLES.items() if place}


def rules(wall: Wall, environ: Mapping[str, str], *, own_proc: bool) -> Iterator[tuple[str | int, int]]:
    """Yield files and folders with their rights, for ``landlock.restrict``.

    Args:
        environ: Environment with which the process was started: it names folders of libraries and programs.
        own_proc: Whether ``/proc`` shows no processes but those behind this wall.
    """
    for place in (*_SYSTEM, *(f"/etc/{name}" for name in _CONFIGURATION), *_MACHINE):
        yield place, landlock.READ
    home = _home(environ)
    for place in _interpreter(home):
        yield place, landlock.READ
    for place in _of_variables(environ, home):
        yield place, landlock.READ
    for place in _DEVICES:
        yield place, landlock.DEVICE
    yield "/dev/shm", landlock.WRITE
    if own_proc:
        yield "/proc", landlock.READ  # as root, settings of the whole system could be written
    else:
        for name in _OWN_PROC:
            yield f"/proc/{name}", landlock.READ
    if wall.gpu:
        for place in _GPU:
            yield place, landlock.READ
        # cuInit names a thread of its own, and fails with CUDA_ERROR_OPERATING_SYSTEM where that is refused.
        yield "/proc/self/task", landlock.WRITE_FILE | landlock.TRUNCATE
        for entry in sorted(Path("/dev").iterdir()):
            if str(entry).startswith(_GPU_DEVICES):
                yield str(entry), landlock.DEVICE | landlock.READ
    for place in wall.readable:
        yield place, landlock.READ
    for place in wall.listed:
        yield place, landlock.LIST
    for place in (wall.folder, *wall.writable):
        yield place, landlock.WRITE


def _home(environ: Mapping[str, str]) -> Path:
    """Return the home directory of the user who started this process; it is the job's by now in ``os.environ``."""
    if home := environ.get("HOME"):
        return Path(home).resolve()
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
    except KeyError:
        return Path("/nonexistent")


def _interpreter(home: Path) -> Iterator[str]:
    """Yield the folders of the interpreter, of its libraries and packages, and of this package."""
    yield str(_PACKAGE)
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    places = {*prefixes, *sysconfig.get_paths().values(), str(Path(sys.executable).resolve().parent.parent)}
    for place in sorted(places):
        if not home.is_relative_to(Path(place).resolve()):
            yield place
    for entry in sys.path:
        if "site-packages" in Path(entry).parts or "dist-packages" in Path(entry).parts:
            yield entry


def _of_variables(environ: Mapping[str, str], home: Path) -> Iterator[str]:
    """Yield folders of libraries, and those folders of programs that lie outside of the home directory."""
    for name in (*_LIBRARY_VARIABLES, "PATH"):
        for entry in environ.get(name, "").split(os.pathsep):
            place = Path(entry)
            if not place.is_absolute() or home.is_relative_to(place.resolve()):
                continue
            if name != "PATH" or not place.resolve().is_relative_to(home):
                yield entry
