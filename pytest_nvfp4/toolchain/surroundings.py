"""What decides a compile or a simulation besides the kernel, its inputs and this package: a part of all cache keys.

Processes with a kernel's code get few variables of the user's shell (`isolation.environment`). Of these, those count
that decide which code is imported or loaded, and its encoding and time zone. Folders for temporary files and names of
the user do not: another shell of the same user shall find the same results.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pytest_nvfp4.sandbox_mode import MODE_VARIABLE

_VARIABLES = (
    *("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TZ"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
)


def surroundings(distributions: Sequence[str], *, environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return what surrounds a worker that this interpreter starts, as JSON values.

    Args:
        distributions: Names of the distributions whose versions count.
        environ: The environment of this process.
    """
    return {
        "platform": [sys.platform, platform.machine(), sys.byteorder],
        "python": [platform.python_implementation(), platform.python_version(), sys.prefix],
        "versions": {name: installed_version(name) for name in distributions},
        "variables": {name: environ[name] for name in _VARIABLES if name in environ},
        "sandbox": environ.get(MODE_VARIABLE) or "auto",
    }


@lru_cache
def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
