"""What a kernel file is, read from its source without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CONTRACT = "custom_kernel"
"""The function that GPU MODE's contract asks a kernel file to define."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why a file cannot be read as Python, with the place."""

    message: str
    line: int | None
    text: str | None


@dataclass(frozen=True, slots=True)
class KernelSource:
    """What the source of a file says about it.

    Attributes:
        path: The file.
        defines_contract: It defines ``custom_kernel`` at module level (a function, or a name bound to something).
        mentions_dsl: It imports ``cutlass`` somewhere.
        functions: Names of its module-level functions.
        main_guard: It has an ``if __name__ == "__main__"`` block.
        problem: Why it could not be parsed; the other fields then come from a look at its text.
    """

    path: Path
    defines_contract: bool
    mentions_dsl: bool
    functions: tuple[str, ...] = ()
    main_guard: bool = False
    problem: SourceProblem | None = None


def _binds(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign():
            return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        case ast.AnnAssign(target=ast.Name(id=bound), value=value):
            return bound == name and value is not None
        case ast.Import() | ast.ImportFrom():
            return any((alias.asname or alias.name) == name for alias in node.names)
        case ast.If():
            return any(_binds(child, name) for child in (*node.body, *node.orelse))
        case ast.Try():
            handlers = [child for handler in node.handlers for child in handler.body]
            return any(_binds(child, name) for child in (*node.body, *handlers, *node.orelse, *node.finalbody))
        case ast.With():
            return any(_binds(child, name) for child in node.body)
    return False


def _imports(tree: ast.AST, module: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == module for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == module:
            return True
    return False


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )


def read_source(path: Path) -> KernelSource | None:
    """Read a file; None when it is neither a kernel under the contract nor a user of the DSL.

    Large trees are fast: a file is parsed only if its text holds one of the words that matter. An answer is kept
    for as long as the file's size and modification time stay the same.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read(path: Path, _mtime_ns: int, _size: int) -> KernelSource | None:
    try:
        data = path.read_bytes()
    except OSError as error:
        return KernelSource(path, False, False, problem=SourceProblem(f"cannot be read: {error}", None, None))
    words = (CONTRACT.encode() in data, b"cutlass" in data)
    if not any(words):
        return None
    try:
        tree = ast.parse(data, filename=str(path))
    except SyntaxError as error:
        problem = SourceProblem(f"{error.msg}", error.lineno, error.text and error.text.rstrip())
        return KernelSource(path, *words, problem=problem)
    except (ValueError, RecursionError, MemoryError) as error:
        return KernelSource(path, *words, problem=SourceProblem(str(error) or type(error).__name__, None, None))
    contract = any(_binds(node, CONTRACT) for node in tree.body)
    dsl = _imports(tree, "cutlass")
    if not contract and not dsl:
        return None
    return KernelSource(
        path,
        contract,
        dsl,
        functions=tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)),
        main_guard=any(_is_main_guard(node) for node in tree.body),
    )
