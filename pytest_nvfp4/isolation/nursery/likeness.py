"""Whether a child of a nursery would be what a process is that this one starts now."""

from __future__ import annotations

import importlib.machinery
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LATE = ("NVFP4_", "CUTE_DSL_", "CUTE_EXPERIMENTAL_DSL_")
"""What the variables begin with that no preloaded module reads: this project's, and those of the DSL, which is never
preloaded since it reads them while it is imported, and each job has its own."""
_PATH = "PYTHONPATH"
_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - as it is in `sys.path`
_ARCHIVE = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
_STANDARD = (_LIBRARY, os.path.join(os.path.dirname(_LIBRARY), _ARCHIVE))  # noqa: PTH118, PTH120
"""What ``sys.path`` begins with in a process that nobody has told where to look."""
_LIMITS = tuple(getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))


def kept(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process may read before its job begins: those a nursery must share with its children.

    It is a list of what may differ, not of what is known to matter: ``OMP_NUM_THREADS`` sizes pools where torch is
    imported, ``LC_ALL`` chooses encodings where Python starts, and the next version may read what this one does not.
    """
    return {name: value for name, value in environ.items() if name != _PATH and not name.startswith(_LATE)}


def inherited() -> tuple[object, ...]:
    """What a process has from the one that starts it: mask of file modes, limits, user, priority, cores, signals.

    Raises:
        OSError: this is not Linux.
    """
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
        mask = next((line for line in status if line.startswith("Umask:")), "")
    return (
        mask,
        tuple(resource.getrlimit(kind) for kind in _LIMITS),
        (os.getresuid(), os.getresgid()),
        os.getpriority(os.PRIO_PROCESS, 0),
        frozenset(os.sched_getaffinity(0)),
        frozenset(number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN),
    )


def import_path(environ: Mapping[str, str], *, base: Sequence[str], cwd: str) -> list[str]:
    """``sys.path`` of a process that starts with ``environ``: ``PYTHONPATH`` comes before the standard library.

    Before both is what lines of ``.pth`` files have put there, as those of the DSL do.

    Args:
        environ: Its variables.
        base: The path of one without ``PYTHONPATH``.
        cwd: Its working directory.
    """
    named = environ.get(_PATH, "")
    folders = dict.fromkeys(_absolute(one, cwd) for one in named.split(os.pathsep)) if named else {}
    first = next((index for index, one in enumerate(base) if one in _STANDARD), 0)
    return [*base[:first], *folders, *(one for one in base[first:] if one not in folders)]


def _absolute(folder: str, cwd: str) -> str:
    return os.path.abspath(os.path.join(cwd, folder))  # noqa: PTH100, PTH118 - as `site` does it, without resolving


def shadowed(path: Sequence[str], *, base: Sequence[str], own: str) -> str | None:
    """Why a process with ``path`` might import something else by a name that is loaded here; None where it would not.

    Only folders can hide something that come before another one there, and not in this process.

    Args:
        path: Its ``sys.path``.
        base: That of this process.
        own: The name of the package that is loaded from its folder whatever the path says.
    """
    ours, theirs = ([one for one in dict.fromkeys(folders) if Path(one).exists()] for folders in (base, path))
    loaded = dict(_found_on_path(own))
    before: set[str] = set()
    for index, folder in enumerate(theirs):
        earlier = ours[: ours.index(folder)] if folder in ours else ours
        if any(one in earlier for one in theirs[index + 1 :]):
            try:
                names = os.listdir(folder)  # noqa: PTH208 - names alone
            except OSError as error:
                return f"{folder} cannot be listed: {error.strerror}"
            for name in names:
                found = loaded.get(name.partition(".")[0])
                if found is not None and _hides(Path(folder, name), found, before):
                    return f"{folder} holds {name}"
        before.add(os.path.realpath(folder))
    return None


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a loaded module was found: one folder, or those that each have a part of a package without a file."""

    folders: frozenset[str]
    in_parts: bool


def _found_on_path(own: str) -> Iterator[tuple[str, _Found]]:
    """Top-level modules that were looked for on the path: neither built in nor frozen, which come before it."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is None or "." in name or name in (own, "__main__") or spec.origin in ("built-in", "frozen"):
            continue
        parts = list(spec.submodule_search_locations or ())
        places = parts if spec.origin is None or parts else [spec.origin]
        yield name, _Found(frozenset(os.path.realpath(Path(one).parent) for one in places), spec.origin is None)


def _hides(path: Path, found: _Found, before: set[str]) -> bool:
    """Whether a file or folder would be imported in a loaded module's place, or as another part of it.

    Args:
        path: The file or folder, which has the module's name.
        found: Where the module was found.
        before: The folders that are looked into before that of ``path``.
    """
    if os.path.realpath(path.parent) in found.folders or (found.folders & before and not found.in_parts):
        return False
    if path.name.endswith(tuple(importlib.machinery.all_suffixes())):
        return True
    # A folder that is no package hides nothing: a module that comes later on the path goes before it.
    return path.is_dir() and (found.in_parts or any(path.glob("__init__.*")))
