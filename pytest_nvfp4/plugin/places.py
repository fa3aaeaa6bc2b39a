"""Paths of snapshots: from a module and a test's name to a file, and from the file to its module.

A snapshot of ``tests/test_x.py::test_a`` or ``kernels/x.py::layouts[p]`` is
``<root>/snapshots/<path without .py>/<name>.txt``. Each module has its own folder, so the owner of a file is known.
"""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

_UNSAFE = frozenset('\\/?*:|"<>')
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LONGEST = 200
"""Bytes of a name. File systems allow 255, and the suffix and the name of a temporary file need some of them."""


def folder_of(module: Path, *, root: Path, snapshots: Path) -> Path:
    """Return the folder of a module's snapshots; it is beside the module if that is outside the root.

    Two names of one module (a link) share a folder, because they share their content. A link to a file outside the root
    is a module of its own.
    """
    for path, base in ((module.resolve(), root.resolve()), (module.absolute(), root)):
        if path.is_relative_to(base):
            relative = path.relative_to(base)
            return snapshots / relative.parent / _stem(relative)
    return module.resolve().parent / snapshots.name / _stem(module)


def owner_of(file: Path, *, root: Path, snapshots: Path) -> Path | None:
    """Return the module that a snapshot file belongs to, which may no longer exist; None for another file."""
    if not file.is_relative_to(snapshots):
        return None
    relative = file.parent.relative_to(snapshots)
    if not relative.parts:
        return None
    module = root / relative
    return module if module.is_file() else module.with_name(f"{relative.name}.py")


def _stem(path: Path) -> str:
    return path.stem if path.suffix == ".py" else path.name


def safe_name(text: str) -> str:
    """Return a text as the name of a file; different texts give different names.

    Characters that file systems do not allow become ``_``, and a short hash is appended. A text that is a valid name is
    returned unchanged.
    """
    name = "".join("_" if char in _UNSAFE or unicodedata.category(char) in _HIDDEN else char for char in text)
    encoded = name.encode()
    if name == text and len(encoded) <= _LONGEST:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{encoded[:_LONGEST].decode(errors='ignore')}~{digest}"
