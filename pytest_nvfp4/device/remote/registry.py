"""Remotes by name: those of this package, and those that other packages add by an entry point.

::

    [project.entry-points."pytest_nvfp4.remotes"]
    mycloud = "mypackage.remote:MyCloud"        # called with RemoteOptions, returns a Remote
"""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from pytest_nvfp4.device.remote.base import ENTRY_POINTS, Remote, RemoteError, RemoteOptions

BUILT_IN = {
    "modal": "pytest_nvfp4.device.remote.modal.client:ModalRemote",
    "ssh": "pytest_nvfp4.device.remote.ssh:SshRemote",
    "wafer": "pytest_nvfp4.device.remote.wafer:WaferRemote",
    "popcorn": "pytest_nvfp4.device.remote.popcorn:PopcornRemote",
}
"""Name -> where it is; nothing of a remote is imported before it is asked for."""

_METHODS = ("describe", "submit", "collect", "cancel", "status", "warm", "stop", "cost")


def names() -> list[str]:
    """Every name that ``--nvfp4-remote`` takes before its colon. Loads no remote."""
    others = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return [*BUILT_IN, *sorted(others - set(BUILT_IN))]


def is_remote(spec: str) -> bool:
    """Whether ``NAME`` or ``NAME:TARGET`` names a remote. Loads none."""
    return spec.partition(":")[0] in names()


def remote(spec: str, options: RemoteOptions | None = None) -> Remote:
    """The remote that ``NAME`` or ``NAME:TARGET`` names. It contacts nothing yet.

    Args:
        spec: Such as ``modal`` or ``ssh:me@b200.example.org``.
        options: What else is wanted; its ``target`` is replaced by the one of ``spec``.

    Raises:
        RemoteError: there is no such remote, it needs something that is not installed, or it refuses the options.
    """
    name, _, target = spec.partition(":")
    made = _factory(name)(replace(options or RemoteOptions(), target=target))
    lacking = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise RemoteError(
            "setup",
            f"the remote {name!r} of another package has no {', '.join(lacking)}",
            "it was made for another version of pytest-nvfp4, or is not finished: see pytest_nvfp4.device.remote.base",
        )
    return made


def _factory(name: str) -> Callable[[RemoteOptions], Remote]:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        try:
            factory: Callable[[RemoteOptions], Remote] = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("pytest_nvfp4"):
                raise
            do = (
                f"pip install {error.name}, or pytest-nvfp4[{name}]" if name == "modal" else f"pip install {error.name}"
            )
            raise RemoteError("setup", f"the remote {name!r} needs {error.name}, which is not installed", do) from error
        return factory
    entries = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name))
    if not entries:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names())}"
        raise RemoteError("setup", f"no remote is called {name!r}", hint)
    try:
        found: Callable[[RemoteOptions], Remote] = entries[0].load()
    except Exception as error:
        raise RemoteError(
            "setup",
            f"the remote {name!r} ({entries[0].value}) cannot be loaded: {type(error).__name__}: {error}",
            "mend or remove the package that registers it",
        ) from error
    return found
