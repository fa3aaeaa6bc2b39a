"""The table of ``toolchain.dsl_names``: which versions of CuTe DSL have which names, read in the files of each.

``python -m pytest_nvfp4.selfcheck.dsl_names VERSION=FOLDER ... > pytest_nvfp4/toolchain/dsl_names.json``, with folders
into which ``pip install --no-deps --target FOLDER`` has put the DSL's packages. Nothing in them is imported.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pytest_nvfp4.syntax import parse

TOP = "cutlass"


def names_of(folder: Path) -> dict[str, set[str]]:
    """Return the public names of each module below a folder that holds the package ``cutlass``; "" is the module."""
    top = next(path.parents[1] for path in sorted(folder.rglob(f"{TOP}/cute/__init__.py")))
    found: dict[str, set[str]] = {}
    stars: dict[str, set[str]] = {}
    for file in sorted(top.rglob("*.py")):
        parts = file.relative_to(top.parent).with_suffix("").parts
        package = parts[:-1]
        module = ".".join(package if parts[-1] == "__init__" else parts)
        if any(part.startswith("_") for part in module.split(".")):
            continue
        found[module], stars[module] = {""}, set()
        for name, base in _bound(parse(file.read_text("utf-8")).body, package):
            if name == "*":
                stars[module].add(base)
            elif not name.startswith("_"):
                found[module].add(name)
    for module in found:
        parent, _, name = module.rpartition(".")
        if parent in found:
            found[parent].add(name)
    for _ in range(4):  # what a module takes from one that takes it from another one
        for module, bases in stars.items():
            for base in bases & found.keys():
                found[module] |= found[base] - {""}
    return found


def _bound(body: Iterable[ast.stmt], package: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the names that statements of a module bind, as far as they are the DSL's; ``*`` with the other module."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, ""
            case ast.Assign():
                targets = (each for target in node.targets for each in ast.walk(target))
                yield from ((each.id, "") for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, ""
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else ()
                base = ".".join((*above, *filter(None, [node.module])))
                if base.partition(".")[0] == TOP:
                    yield from ((alias.asname or alias.name, base) for alias in node.names)
            case ast.If() | ast.Try():
                handlers = [each for handler in getattr(node, "handlers", ()) for each in handler.body]
                yield from _bound([*node.body, *handlers, *node.orelse], package)


def table(versions: Mapping[str, Mapping[str, set[str]]]) -> dict[str, object]:
    """Return the names that some of the versions lack: by the versions that have them, by module, in one text."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for module in sorted(set().union(*versions.values())):
        modules = {version: names.get(module, set()) for version, names in versions.items()}
        for name in sorted(set().union(*modules.values())):
            have = [version for version, names in modules.items() if name in names]
            # Of a module that is not there, no name needs to be listed.
            if have != [version for version, names in modules.items() if names or not name]:
                grouped.setdefault(" ".join(have), {}).setdefault(module, []).append(name)
    names = {have: {module: " ".join(each) for module, each in of.items()} for have, of in sorted(grouped.items())}
    return {"versions": list(versions), "names": names}


if __name__ == "__main__":
    trees = dict(argument.split("=", 1) for argument in sys.argv[1:])
    sys.stdout.write(
        json.dumps(table({version: names_of(Path(folder)) for version, folder in trees.items()}), indent=1)
    )
