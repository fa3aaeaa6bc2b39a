"""The files of a user that the compile of one kernel may read."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.syntax import parse

_MOST_BESIDE = 2000
"""Number of files of a folder above which it is no folder of a kernel."""

_MOST_SOURCES = 500
"""Number of source files of extensions below a folder above which they belong to no single kernel."""

_EXTENSION = frozenset({".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl"})
"""Suffixes of C++ and CUDA."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages that are on the import path by PYTHONPATH, or by Debian, and not in `sysconfig`."""


class OwnFiles(NamedTuple):
    """Files that may be read, and folders whose names may be listed, as Python does to find a module in them."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


def own_files(kernel: Path, entry: Path | None, *, roots: Sequence[Path]) -> OwnFiles:
    """Return the files that belong to a kernel: what it imports, and what lies beside it.

    These are the kernel, its entry, the modules below ``roots`` or on the import path that an ``import`` statement of
    one of these files names, all files of packages among them, the files beside the kernel and its entry whose names
    do not begin with a dot, and the sources of its extensions. Other files of the user's repository are not read.
    """
    first = [path for path in (kernel, entry) if path is not None]
    folders = [*dict.fromkeys(path.parent for path in first)]
    search = [*folders, *(_package_root(path) for path in first), *roots, *user_entries()]
    files, used = _imported(first, [*dict.fromkeys(folder.resolve() for folder in search)])
    for folder in folders:
        files.update(_beside(folder))
    files.update(extension_sources(files))
    listed = {*folders, *used}
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - Path.home() raises where there is none
    return OwnFiles(
        tuple(sorted(map(str, files))),
        tuple(sorted(str(folder) for folder in listed if not home.is_relative_to(folder.resolve()))),
    )


def extension_sources(files: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files of C++ and CUDA below the folders of those Python files that use ``torch.utils.cpp_extension``.

    A folder with too many files, such as that of a whole project, counts as none; hidden folders are left out.
    """
    folders = dict.fromkeys(path.parent for path in files if path.suffix == ".py" and uses_extension(path))
    return tuple(sorted({path for folder in folders for path in _sources(folder)}))


def uses_extension(path: Path) -> bool:
    """Return whether a Python file names ``torch.utils.cpp_extension``."""
    try:
        return b"cpp_extension" in path.read_bytes()
    except OSError:
        return False


def calls_extension(path: Path) -> bool:
    """Return whether a Python file uses ``torch.utils.cpp_extension``, beyond an import whose names it never reads."""
    if not uses_extension(path):
        return False
    try:
        nodes = list(ast.walk(parse(path.read_bytes())))
    except (OSError, SyntaxError):
        return False  # the compile reports it
    names = {"cpp_extension"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == "cpp_extension":
            for alias in node.names:
                names.update(["load", "load_inline"] if alias.name == "*" else [alias.asname or alias.name])
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname for alias in node.names if alias.asname and "cpp_extension" in alias.name)
    return any(_names(node, names) for node in nodes)


def _names(node: ast.AST, names: set[str]) -> bool:
    """Return whether a node reads one of some names, or is the module's name for a call of ``import_module``."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return name == "cpp_extension"
        case ast.Constant(value=str(text)):
            return text.rpartition(".")[2] == "cpp_extension"
    return False


def _sources(folder: Path) -> list[Path]:
    found: list[Path] = []
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        count += len(names) + len(folders)
        paths = (Path(place, name) for name in names if not name.startswith("."))
        found += (path for path in paths if path.suffix in _EXTENSION and path.is_file() and not path.is_symlink())
        if count > _MOST_BESIDE or len(found) > _MOST_SOURCES:
            return []
    return found


def imported_sources(kernel: Path, entry: Path | None, *, roots: Sequence[Path]) -> tuple[Path, ...]:
    """Return the Python files of the user's that a kernel and its entry import, directly or not, and these two."""
    first = [path for path in (kernel, entry) if path is not None]
    search = [*(path.parent for path in first), *(_package_root(path) for path in first), *roots]
    files, _ = _imported(first, [*dict.fromkeys(folder.resolve() for folder in search)])
    return tuple(sorted(path for path in files if path.suffix == ".py"))


def foreign_modules(files: Sequence[Path]) -> frozenset[str]:
    """Return the first names of the modules that the user's files import, and that are none of these or Python's."""
    named = {parts[0] for path in files for parts, level in _statements(path) if level == 0}
    return frozenset(named - {path.stem for path in files} - sys.stdlib_module_names)


def _package_root(path: Path) -> Path:
    """Return the folder that is on the import path for a file (see ``worker.loading.load``)."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder = folder.parent
    return folder


def user_entries() -> Iterator[Path]:
    """Yield the entries of the import path outside of installed packages, such as those of editable installs."""
    libraries = [Path(path).resolve() for path in sysconfig.get_paths().values()]
    for entry in sys.path:
        place = Path(entry).resolve()
        installed = _INSTALLED & {*Path(entry).parts, *place.parts}
        if entry and place.is_dir() and not installed and not any(map(place.is_relative_to, libraries)):
            yield place


def _beside(folder: Path) -> set[Path]:
    found = set()
    for index, path in enumerate(folder.iterdir()):
        if index >= _MOST_BESIDE:
            return set()
        if not path.name.startswith(".") and path.is_file():
            found.add(path)
    return found


def _imported(first: Iterable[Path], search: Sequence[Path]) -> tuple[set[Path], set[Path]]:
    """Return some files with those that they import, directly or not, and the folders in which these were found."""
    files, used = set(first), set()
    pending = list(files)
    while pending:
        path = pending.pop()
        for parts, level in _statements(path):
            bases = [path.parents[level - 1]] if 0 < level <= len(path.parents) else search
            for base in bases:
                found = set(_module(base, parts))
                if found:
                    used.add(base)
                    used.update(place.parent for place in found)
                    pending += [place for place in found - files if place.suffix == ".py"]
                    files |= found
                    break
    return files, used


def _statements(path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the names that a file imports, and the level of a relative import."""
    try:
        tree = parse(path.read_bytes())
    except (OSError, SyntaxError):
        return  # the compile reports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split(".")), 0
        elif isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield (*base, alias.name), node.level


def _module(base: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of a module below a folder, those of its packages among them."""
    folder = base
    for part in parts:
        if (package := folder / part).is_dir():
            if any(package.glob("*.py")):
                yield from (path for path in package.iterdir() if path.is_file())
            folder = package
            continue
        if (file := folder / f"{part}.py").is_file():
            yield file
        else:
            yield from folder.glob(f"{part}.*.so")
        return
