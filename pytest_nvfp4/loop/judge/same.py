"""Whether two candidates are the same: the same PTX and launches, and the same host code around them.

Two kernels with one PTX may differ in their grid, their tensor maps, a workspace, or a Python wrapper that calls them.
The hash therefore covers what was compiled for each problem of the gates (`toolchain.same_code`), all of the file's
Python but the bodies of device functions, and the other files that a candidate may change. A body of a device function
decides nothing but the PTX, unless it assigns to names outside itself.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.syntax import parse

_MODULES: Final = ("cutlass.cute", "cutlass")
_DECORATOR: Final = "kernel"
_MOST_BYTES: Final = 16 << 20


def candidate_sha256(compiled: Mapping[str, str], *, root: Path, kernel: str, may_change: Iterable[str]) -> str | None:
    """Return the hash of what decides how a candidate runs; None if that is unknown, or a file cannot be read.

    Args:
        compiled: Hash of what was compiled, by the name of the compile.
        root: The worktree.
        kernel: The kernel file, relative to it.
        may_change: Patterns of other files that a candidate may change.
    """
    if not compiled:
        return None
    try:
        source = read_file(root / kernel, source=kernel, most=_MOST_BYTES).decode()
        others = {name: _hash_of(root / name) for name in _matching(root, may_change) if name != kernel}
        host = host_code(source)
    except (OSError, DoorError, ValueError, SyntaxError, RecursionError):
        return None
    return hashlib.sha256(json.dumps([dict(compiled), host, others], sort_keys=True).encode()).hexdigest()


def _hash_of(file: Path) -> str:
    return hashlib.sha256(read_file(file, source=str(file), most=_MOST_BYTES)).hexdigest()


def _matching(root: Path, patterns: Iterable[str]) -> list[str]:
    patterns = tuple(patterns)
    if not patterns:
        return []
    files = (path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts)
    names = sorted(path.relative_to(root).as_posix() for path in files)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def host_code(source: str) -> str:
    """Return the Python of a file, normalised, with the bodies of its device functions left out. Raises SyntaxError."""
    tree = parse(source)
    device = _DeviceFunctions(tree)
    return ast.dump(device.visit(tree))


class _DeviceFunctions(ast.NodeTransformer):
    """Empties the bodies of functions with the decorator ``cute.kernel``, by any name that the file gives to it."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules: set[str] = set()
        self._names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in _MODULES:
                        self._modules.add(alias.asname or alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
                for alias in node.names:
                    if node.module == _MODULES[0] and alias.name == _DECORATOR:
                        self._names.add(alias.asname or alias.name)
                    elif node.module == _MODULES[1] and alias.name == "cute":
                        self._modules.add(alias.asname or alias.name)
        if "cutlass" in self._modules:
            self._modules.add("cutlass.cute")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Empty the body of a device function that assigns to nothing outside itself."""
        if any(map(self._is_kernel, node.decorator_list)) and not any(map(_reaches_out, ast.walk(node))):
            node.body = [ast.Pass()]
            return node
        return self.generic_visit(node)

    def _is_kernel(self, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name):
            return called.id in self._names
        return isinstance(called, ast.Attribute) and (
            called.attr == _DECORATOR and ast.unparse(called.value) in self._modules
        )


def _reaches_out(node: ast.AST) -> bool:
    """Return whether a statement may change state outside its function while the function is traced."""
    if isinstance(node, ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
        return True
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
