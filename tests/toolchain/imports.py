"""The rooms that some modules import, read from their sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path


def imported_rooms(modules: Iterable[str], *, package: Path) -> set[str]:
    """Return the first part below the package of every module that some modules import, directly or not."""
    files = {
        ".".join((package.name, *file.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in package.rglob("*.py")
    }
    seen: set[str] = set()
    left = [module for module in modules if module in files]
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += [name for name in _named(files[module]) if name in files]
    return {name.split(".")[1] for name in seen if "." in name}


def _named(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
