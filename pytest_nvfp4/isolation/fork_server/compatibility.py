"""Whether a child forked from a fork server equals a process that this one would start now."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pytest_nvfp4.isolation.fork_server.hidden import HiddenPackage

_PER_JOB_PREFIXES = ("NVFP4_", "CUTE_DSL_", "CUTE_EXPERIMENTAL_DSL_")
"""Prefixes of variables that differ between jobs: this project's, and those of the DSL, which reads them again in each
child (``toolchain.preloaded_dsl``)."""
_SHARED_PARTS = ("_DSL_LOG_", "_DSL_JIT_TIME_PROFILING", "_DSL_CACHE_DIR")
"""Parts of the names of the DSL's variables that it reads once only, at import."""
_PATH_VARIABLE = "PYTHONPATH"
_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - spelled as in `sys.path`
_ARCHIVE = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
_STANDARD_LIBRARY = (_LIBRARY, os.path.join(os.path.dirname(_LIBRARY), _ARCHIVE))  # noqa: PTH118, PTH120
"""First entries of ``sys.path`` in a process without ``PYTHONPATH``."""
_WITHOUT_PATH = ("built-in", "frozen")
"""Origins of modules that precede the path and cannot be shadowed."""
_LIMITS = tuple(getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))


def shared_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a fork server must share with its children.

    All variables count except those known to be read late, because a process may read any of them before its job
    begins: torch sizes its thread pools by ``OMP_NUM_THREADS`` at import, and Python chooses encodings by ``LC_ALL``
    at startup.
    """
    return {
        name: value
        for name, value in environ.items()
        if name != _PATH_VARIABLE
        and (not name.startswith(_PER_JOB_PREFIXES) or any(part in name for part in _SHARED_PARTS))
    }


def inherited_state() -> tuple[object, ...]:
    """Return what a process inherits from its parent: umask, limits, user, priority, CPUs, ignored signals.

    Raises:
        OSError: This system is not Linux.
    """
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
        umask = next((line for line in status if line.startswith("Umask:")), "")  # os.umask() would have to change it
    return (
        umask,
        tuple(resource.getrlimit(kind) for kind in _LIMITS),
        (os.getresuid(), os.getresgid()),
        os.getpriority(os.PRIO_PROCESS, 0),
        frozenset(os.sched_getaffinity(0)),
        frozenset(number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN),
    )


def import_path(environ: Mapping[str, str], *, base: Sequence[str], cwd: str) -> list[str]:
    """Return the ``sys.path`` of a process started with ``environ``.

    ``PYTHONPATH`` comes before the standard library. Before both come the entries that ``.pth`` files insert at the
    front, as those of the DSL do. ``base`` is the ``sys.path`` of a process without ``PYTHONPATH``.
    """
    value = environ.get(_PATH_VARIABLE, "")
    # As `site` does, without resolving links.
    absolute = (os.path.abspath(os.path.join(cwd, folder)) for folder in value.split(os.pathsep))  # noqa: PTH100, PTH118
    folders = dict.fromkeys(absolute) if value else {}
    first = next((index for index, folder in enumerate(base) if folder in _STANDARD_LIBRARY), 0)
    return [*base[:first], *folders, *(folder for folder in base[first:] if folder not in folders)]


def shadowing(path: Sequence[str], *, package: str) -> str | None:
    """Return why a process with this ``sys.path`` would import another module under a name loaded here, or None.

    ``package`` is the name of the package that every process loads from its folder, whatever the path.
    """
    importlib.invalidate_caches()  # files may have been added since the last request
    specs = [(name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items())]
    specs += [(finder.spec.name, finder.spec) for finder in sys.meta_path if isinstance(finder, HiddenPackage)]
    for name, spec in specs:
        if spec is None or spec.name != name or "." in name or name == package or spec.origin in _WITHOUT_PATH:
            continue
        found = PathFinder.find_spec(name, list(path))
        # None: another finder than that of the path has loaded it, and precedes or follows the path there, too.
        if found is not None and (there := _places(found)) != _places(spec):
            return f"{name} would be imported from {', '.join(sorted(there))}"
    return None


def _places(spec: ModuleSpec) -> set[str]:
    """Return the file of a module, or the folders of the portions of a namespace package (PEP 420)."""
    places = [spec.origin] if spec.origin is not None else spec.submodule_search_locations or ()
    return {os.path.realpath(place) for place in places}
