"""Import of the DSL in a fork server, which imports this module for the jobs that use the DSL.

The import takes more CPU time than most compiles. It reads the environment into the instances of the DSL's classes, so
a job that imports the DSL gets the same modules with these instances initialised again (``HiddenPackage``). What else
the import reads is in ``isolation.fork_server.compatibility``: those variables are the same in the server and the job.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import warnings
from typing import Any

from pytest_nvfp4.host.dumps import DSL_PREFIXES
from pytest_nvfp4.isolation.fork_server.hidden import HiddenPackage

_NAME = "cutlass"
_SETTING = "DISABLE_FILE_CACHING"
"""Suffix of the variable that all jobs set (``host.redirect.environment``); a cache folder is chosen once without."""


def _initialise() -> None:
    """Initialise the instances of the DSL's classes again, in place, because decorated functions refer to them."""
    instances: dict[type, Any] = importlib.import_module(f"{_NAME}.base_dsl.dsl").DSLSingletonMeta._instances
    for instance in instances.values():
        instance.__dict__.clear()
        instance.__init__()


def _forget() -> None:
    """Clear the caches of the modules that read variables, folders and devices."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_NAME}.base_dsl."):
            members = list(vars(module).values())
            for kind in [member for member in members if isinstance(member, type) and member.__module__ == name]:
                members += vars(kind).values()
            for member in members:
                if isinstance(member, functools._lru_cache_wrapper):
                    member.cache_clear()


def _preload() -> None:
    names = [f"{prefix}_{_SETTING}" for prefix in DSL_PREFIXES]
    hook = sys.excepthook
    with warnings.catch_warnings():  # an instance adds filters
        os.environ.update(dict.fromkeys(names, "1"))
        try:
            importlib.import_module(_NAME)
        finally:
            for name in names:
                del os.environ[name]
    sys.excepthook = hook  # an instance replaces it
    _forget()
    sys.meta_path.insert(0, HiddenPackage(_NAME, _initialise))


with contextlib.suppress(ModuleNotFoundError):
    if importlib.util.find_spec(_NAME) is not None:
        _preload()
