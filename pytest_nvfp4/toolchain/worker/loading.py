"""Imports in workers: of a kernel's file under its own name, and faster ones of torch and the DSL.

The objects of torch and the DSL are permanent. Scanning them repeatedly takes a fifth of the import time (1.25 s of CPU
instead of 1.55 s, measured), and again in every compile, so their imports run without garbage collection.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import PathEntryFinder


def begin_imports() -> None:
    """Disable garbage collection until `end_imports`."""
    gc.disable()


def end_imports() -> None:
    """Enable garbage collection, excluding all current objects; call it before the kernel's first line."""
    gc.freeze()
    gc.enable()


class _Everything:
    """A listing of a folder that contains any name."""

    def __contains__(self, name: object) -> bool:
        return True


class _UnlistedFinder(FileFinder):
    """Finder in a folder that must not be listed (a home directory behind a wall): it looks for each file by name."""

    def _fill_cache(self) -> None:
        self._path_cache = self._relaxed_path_cache = _Everything()


_new_unlisted_finder = _UnlistedFinder.path_hook(
    (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES)
)


def _finder_of_unlisted(folder: str) -> PathEntryFinder:
    """Return a finder for a folder that may be entered but not listed. Raises ImportError for any other."""
    try:
        os.scandir(folder).close()
    except PermissionError:
        return _new_unlisted_finder(folder)
    except OSError:
        pass
    raise ImportError(f"{folder} can be listed, or is no folder")


def load(path: Path, *, beside: Iterable[Path] = ()) -> ModuleType:
    """Import a file under its own name, within its package if it is part of one, its folder first on the path.

    Args:
        path: The file.
        beside: Further folders that are appended to the path.
    """
    sys.path_hooks.insert(0, _finder_of_unlisted)
    sys.path_importer_cache.clear()
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    sys.path += [str(other) for other in beside if str(other) not in sys.path]
    name = ".".join(parts)
    if len(parts) > 1:
        return importlib.import_module(name)
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = f"nvfp4_kernel_{''.join(c if c.isalnum() else '_' for c in name)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
