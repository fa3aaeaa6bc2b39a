"""Where snapshots lie: from a module and a test's name to a file, and back from the file to its module.

A snapshot of ``tests/test_x.py::test_a`` or ``kernels/x.py::layouts[p]`` is
``<root>/snapshots/<path without .py>/<name>.txt``: one folder a module, so that its owner can always be told.
"""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

_UNSAFE = frozenset('\\/?*:|"<>')
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LONGEST = 200
"""Bytes of a name; a file system holds 255, of which the suffix and a temporary file's own letters need some."""


def folder_of(module: Path, *, root: Path, snapshots: Path) -> Path:
    """The folder of a module's snapshots; beside the module where that lies outside the root.

    Two names of one module (a link) share a folder, as they share their content. A link out of the root is its own
    module.
    """
    for path, base in ((module.resolve(), root.resolve()), (module.absolute(), root)):
        if path.is_relative_to(base):
            relative = path.relative_to(base)
            return snapshots / relative.parent / _stem(relative)
    return module.resolve().parent / snapshots.name / _stem(module)


def owner_of(file: Path, *, root: Path, snapshots: Path) -> Path | None:
    """The module that a snapshot file belongs to, whether or not it still exists; None for a file of another kind."""
    if not file.is_relative_to(snapshots):
        return None
    relative = file.parent.relative_to(snapshots)
    if not relative.parts:
        return None
    as_it_is = root / relative
    return as_it_is if as_it_is.is_file() else as_it_is.with_name(f"{relative.name}.py")


def _stem(path: Path) -> str:
    return path.stem if path.suffix == ".py" else path.name


def safe_name(text: str) -> str:
    """A text as a file's name: what a file system cannot hold becomes ``_``, and a short hash keeps it apart.

    Other texts give other names. A text that can be a name stays as it is.
    """
    name = "".join("_" if char in _UNSAFE or unicodedata.category(char) in _HIDDEN else char for char in text)
    encoded = name.encode()
    if name == text and len(encoded) <= _LONGEST:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{encoded[:_LONGEST].decode(errors='ignore')}~{digest}"
