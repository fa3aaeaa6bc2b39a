"""Imports in workers: of a kernel's file under its own name, and faster ones of torch and the DSL.

The objects of torch and the DSL are permanent. Scanning them repeatedly takes a fifth of the import time (1.25 s of CPU
instead of 1.55 s, measured), and again in every compile, so their imports run without garbage collection.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


def begin_imports() -> None:
    """Disable garbage collection until `end_imports`."""
    gc.disable()


def end_imports() -> None:
    """Enable garbage collection, excluding all current objects; call it before the kernel's first line."""
    gc.freeze()
    gc.enable()


def load(path: Path, *, beside: Iterable[Path] = ()) -> ModuleType:
    """Import a file under its own name, within its package if it is part of one, its folder first on the path.

    Args:
        path: The file.
        beside: Further folders that are appended to the path.
    """
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
