"""Search for calls of torch's compiler in the code that a kernel's host code runs.

Inductor, the compiler behind ``torch.compile``, writes kernels on the machine of the GPU that it compiles for. Without
one they do not exist, and what would run in their place is not what a GPU runs. The search reads the sources before the
first of them is executed: definitions that nothing mentions, and what stands behind ``__name__ == "__main__"``, are
left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.syntax import parse

_COMPILERS: Final = ("torch.compile", "torch._dynamo.optimize", "torch._inductor")
_HARMLESS: Final = ("torch._inductor.config", "torch._inductor.runtime.triton_helpers")
"""Options, and functions of the device that a kernel in Triton may call."""


def torch_compiler_findings(files: Iterable[Path], *, first: Path, function: str) -> list[Finding]:
    """Return a finding for the first call of torch's compiler in what a function may run; empty if there is none.

    Args:
        files: The kernel's file and the user's modules that it imports.
        first: The file of the function.
        function: The name of the function.
    """
    definitions: dict[str, list[tuple[Path, ast.stmt]]] = {}
    reached: list[tuple[Path, ast.stmt]] = []
    imported: dict[Path, dict[str, str]] = {}
    for path in sorted(files, key=lambda path: (path != first, path)):
        try:
            tree = parse(path.read_bytes())
        except (OSError, SyntaxError):
            continue  # the import reports it
        imported[path] = dict(_imported(tree))
        for statement in tree.body:
            names = list(_defined(statement))
            for name in names:
                definitions.setdefault(name, []).append((path, statement))
            if not names and not _is_main(statement):
                reached.append((path, statement))
    pending, known = [function], {function}
    while pending or reached:
        if not reached:
            reached += definitions.pop(pending.pop(), [])
            continue
        path, statement = reached.pop(0)
        for node in _nodes(statement):
            if (used := _used(node, imported[path])) is not None:
                return [_finding(path, node, used)]
            pending += [name for name in _mentioned(node) if name not in known]
            known.update(pending)
    return []


def _finding(path: Path, node: ast.AST, used: str) -> Finding:
    return Finding(
        "compile",
        f"{path.name} uses {used}, whose kernels torch's compiler writes on a machine with the GPU, so that none of "
        "them can be checked here: remove it and launch a kernel of your own (the @triton.jit function that Inductor "
        "wrote, called as kernel[grid](...), is one), or keep torch's operators as they are",
        file=str(path),
        line=getattr(node, "lineno", None),
    )


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines and that it has no other effect than to define."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)


def _is_main(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
    )


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports anywhere in a file define, and what of torch they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
                for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, but of ``a.b.c`` only the whole."""
    yield node
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name):
            return
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child)


def _used(node: ast.AST, imported: dict[str, str]) -> str | None:
    """Return the name of the part of torch's compiler that an expression is, or None."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        parts.insert(0, inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in imported:
        return None
    name = ".".join((imported[inner.id], *parts))
    return name if _within(name, _COMPILERS) and not _within(name, _HARMLESS) else None


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _mentioned(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
        yield from _mentioned(node.value)
    elif isinstance(node, ast.alias):
        yield node.name.rpartition(".")[2]
