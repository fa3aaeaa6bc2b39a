"""Registry of remotes by name: those of this package, and those that other packages add with an entry point.

::

    [project.entry-points."pytest_nvfp4.remotes"]
    mycloud = "mypackage.remote:MyCloud"        # called with RemoteOptions, returns a Remote
"""

from __future__ import annotations

import difflib
import importlib.metadata
import math
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
"""Factories by name, as text: a remote's module is imported when the remote is requested."""

_METHODS = ("describe", "submit", "collect", "cancel", "status", "warm", "stop", "cost")


def names() -> list[str]:
    """Return every name that ``--nvfp4-remote`` accepts before its colon. Imports no remote."""
    others = {entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return [*BUILT_IN, *sorted(others - set(BUILT_IN))]


def remote(spec: str, options: RemoteOptions | None = None) -> Remote:
    """Return the remote that ``NAME`` or ``NAME:TARGET`` names. Contacts nothing.

    Args:
        spec: Name and target, such as ``modal`` or ``ssh:me@b200.example.org``.
        options: Options; the target of ``spec`` replaces ``target``.

    Raises:
        RemoteError: The remote is unknown, requires a package that is not installed, or rejects the options.
    """
    name, _, target = spec.partition(":")
    options = replace(options or RemoteOptions(), target=target)
    created = _factory(name)(options)
    if missing := [method for method in _METHODS if not callable(getattr(created, method, None))]:
        raise RemoteError(
            "setup",
            f"the remote {name!r} of another package has no {', '.join(missing)}",
            "it is unfinished or for another version of pytest-nvfp4: see pytest_nvfp4.device.remote.base",
        )
    if options.max_cost is not None and options.gpu_price is None:
        _require_price(created, name, options)
    return created


def _require_price(created: Remote, name: str, options: RemoteOptions) -> None:
    """Raise RemoteError if a limit on the cost could not hold."""
    usd = created.cost().usd_per_hour
    if usd is None or not 0 <= usd < math.inf:
        known = "unknown" if usd is None else f"{usd:g} dollars an hour"
        raise RemoteError(
            "setup",
            f"the price of a {options.gpu} on {name} is {known}, so no limit on the cost can hold",
            "give its price with --nvfp4-gpu-price USD, or no limit",
        )


def affordable_s(created: Remote, options: RemoteOptions) -> float:
    """Return the seconds of one container that the limit on the cost pays for; infinity without a limit."""
    usd = created.cost().usd_per_hour or options.gpu_price
    return options.max_cost * 3600 / usd if options.max_cost is not None and usd else math.inf


def _factory(name: str) -> Callable[[RemoteOptions], Remote]:
    factory: Callable[[RemoteOptions], Remote]
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        try:
            factory = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("pytest_nvfp4"):
                raise
            extra = f", or pytest-nvfp4[{name}]" if name == "modal" else ""
            problem = f"the remote {name!r} requires {error.name}, which is not installed"
            raise RemoteError("setup", problem, f"pip install {error.name}{extra}") from error
        return factory
    entries = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name))
    if not entries:
        similar = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"known remotes: {', '.join(names())}"
        raise RemoteError("setup", f"no remote is named {name!r}", hint)
    try:
        factory = entries[0].load()
    except Exception as error:
        raise RemoteError(
            "setup",
            f"the remote {name!r} ({entries[0].value}) cannot be imported: {type(error).__name__}: {error}",
            "repair or remove the package that registers it",
        ) from error
    return factory
