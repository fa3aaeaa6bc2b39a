"""Paths of snapshots: from a module and a test's name to a file, and from the file to its module.

A snapshot of ``tests/test_x.py::test_a`` or ``kernels/x.py::layouts[p]`` is
``<root>/snapshots/<path without .py>/<name>.txt``. Each module has its own folder, so the owner of a file is known.
The root is that of the module's project, and not of the folder that pytest was started in.
"""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

_UNSAFE = frozenset('\\/?*:|"<>')
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LONGEST = 200
"""Bytes of a name. File systems allow 255, and the suffix and the name of a temporary file need some of them."""


class Places:
    """The folders of the snapshots of a run.

    Args:
        root: pytest's root, if its configuration or the command line says it; None if pytest took it from the folder
            that it was started in.
        folder: Folder of the snapshots, relative to a root.
    """

    def __init__(self, root: Path | None, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._roots: dict[Path, Path] = {}

    def root_of(self, module: Path) -> Path:
        """Return the root of a module's project, which may no longer exist.

        It is pytest's root if that is configured and the module lies below it. Otherwise it is what commands take for
        it (`settings.find_root`): the folder of a pyproject.toml or a repository, else the folder of the module.
        """
        if self._root is not None and any(path.is_relative_to(root) for path, root in _names(module, self._root)):
            return self._root
        folder = module.absolute().parent
        if folder not in self._roots:
            from pytest_nvfp4.settings import find_root

            there = next(place for place in (folder, *folder.parents) if place.is_dir())
            self._roots[folder] = find_root(there)
        return self._roots[folder]

    @property
    def folders(self) -> list[Path]:
        """The folders of the snapshots of all projects that were asked for."""
        return [self.of_root(root) for root in (self._root, *self._roots.values()) if root is not None]

    def of_root(self, root: Path) -> Path:
        """Return the folder of the snapshots of a project."""
        return root / self._folder

    def of_module(self, module: Path) -> Path:
        """Return the folder of a module's snapshots."""
        root = self.root_of(module)
        return folder_of(module, root=root, snapshots=self.of_root(root))

    def relative(self, snapshot: Path) -> Path:
        """Return the path of a snapshot's file below the folder of the snapshots of a project that was asked for."""
        folder = next((folder for folder in self.folders if snapshot.is_relative_to(folder)), snapshot.parent)
        return snapshot.relative_to(folder)


def _names(module: Path, root: Path) -> tuple[tuple[Path, Path], ...]:
    """Return the names of a module, each with the name of the root to compare it with."""
    real = root.resolve()
    return (module.resolve(), real), (module.absolute(), root), (module.absolute().parent.resolve() / module.name, real)


def folder_of(module: Path, *, root: Path, snapshots: Path) -> Path:
    """Return the folder of a module's snapshots; it is beside the module if that is outside the root.

    Two names of one module (a link) share a folder, because they share their content. A link to a file outside the root
    is a module of its own.
    """
    for path, base in _names(module, root):
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
