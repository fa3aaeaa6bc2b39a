"""The folder of the caches."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "NVFP4_CACHE_DIR"
"""Environment variable that overrides the folder of the cache."""


def default_root() -> Path:
    """Return the folder of the cache: ``$NVFP4_CACHE_DIR``, or the user's cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("pytest-nvfp4", appauthor=False))
