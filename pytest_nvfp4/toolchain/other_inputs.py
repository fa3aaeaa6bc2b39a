"""What decides a compile besides the modules that it imported: other files that it read, and places that must be empty.

A module that is added beside a kernel, or in a folder of ``PYTHONPATH``, may take the place of one that was imported
from elsewhere. So a trace also records the places at which Python would have found such a module first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_nvfp4.syntax import parse
from pytest_nvfp4.toolchain.cache import file_stamp

_MOST = 20_000


def other_inputs(read: Iterable[str], modules: Iterable[str], *, search: Sequence[Path]) -> dict[str, str]:
    """Return the stamp of each place that decides a compile besides its modules; see `cache.file_stamp`.

    Args:
        read: Files that the compile read and that are no modules.
        modules: The user's modules that it imported, the kernel among them.
        search: Folders in which Python looks for the user's modules, in order.
    """
    modules = list(modules)
    names = {name for module in modules for name in _imported(Path(module))}
    places = [*read, *_empty_places(sorted(names), search)]
    return {place: file_stamp(Path(place)) for place in sorted(set(places) - set(modules))[:_MOST]}


def _imported(module: Path) -> Iterator[str]:
    """Yield the first part of every name that a module imports absolutely."""
    try:
        tree = parse(module.read_bytes())
    except (OSError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _empty_places(names: Iterable[str], search: Sequence[Path]) -> Iterator[str]:
    """Yield the files that would be a module of a name, up to the first that is one."""
    for name in names:
        for folder in search:
            places = (folder / name / "__init__.py", folder / f"{name}.py")
            yield from map(str, places)
            if any(place.is_file() for place in places):
                break
