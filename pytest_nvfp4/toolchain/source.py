"""Static properties of a kernel file, read from its source without running it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pytest_nvfp4.syntax import parse

REFUSED_WORD = "stream"
"""GPU MODE's submission path rejects a file whose text contains this anywhere, in any case, comments included."""
CONTRACT = "custom_kernel"
"""Name of the function that GPU MODE's contract requires."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Reason why a file is not Python, with its line."""

    message: str
    line: int | None
    text: str | None


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Properties of a kernel file.

    Attributes:
        path: The file.
        defines_contract: Whether it binds ``custom_kernel`` at module level.
        mentions_dsl: Whether it imports ``cutlass`` anywhere.
        functions: Names of its module-level functions and classes.
    """

    path: Path
    defines_contract: bool
    mentions_dsl: bool
    functions: tuple[str, ...] = ()


_DEFINES = re.compile(rf"^(?:async\s+)?def\s+{CONTRACT}\s*\(|^{CONTRACT}\s*(?::[^=\n]+)?=(?!=)", re.MULTILINE)
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+cutlass\b", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:async\s+)?def\s+(\w+)\s*\(", re.MULTILINE)
_CLASS = re.compile(r"^class\s+(\w+)\b", re.MULTILINE)


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


def read_source(path: Path) -> KernelSource | None:
    """Read a file; None if it neither follows the contract nor uses the DSL.

    Results are cached by size and modification time.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read(path: Path, _mtime_ns: int, _size: int) -> KernelSource | None:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    if CONTRACT not in text and "cutlass" not in text:
        return None
    contract, dsl = _defines_contract(text), _IMPORTS.search(text) is not None
    if not contract and not dsl:
        return None
    names = tuple(_FUNCTION.findall(text)) + tuple(_CLASS.findall(text))
    return KernelSource(path, contract, dsl, names)


def _defines_contract(text: str) -> bool:
    """Return whether the module binds the contract's name.

    A definition at the start of a line outside strings is accepted without parsing, because parsing every file would
    slow down collection of large folders. Otherwise (a string, an import, a branch) the syntax tree decides.
    """
    if CONTRACT not in text:
        return False
    match = _DEFINES.search(text)
    before = text[: match.start()] if match else ""
    if match and before.count('"""') % 2 == 0 and before.count("'''") % 2 == 0:
        return True
    try:
        tree = parse(text)
    except SyntaxError:
        return match is not None
    return any(_binds(node, CONTRACT) for node in tree.body)


def refused_line(path: Path) -> tuple[int, str] | None:
    """Return the first line of a file, counted from 1, that GPU MODE's submission path rejects, and its text."""
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    for number, line in enumerate(text.splitlines(), 1):
        if REFUSED_WORD in line.lower():
            return number, line
    return None


def syntax_problem(path: Path) -> SourceProblem | None:
    """Return the reason why a file is not Python, or None."""
    try:
        data = path.read_bytes()
        compile(data, str(path), "exec", dont_inherit=True)
        return _not_decoded(data)
    except SyntaxError as error:
        return SourceProblem(f"{type(error).__name__}: {error.msg}", error.lineno, error.text and error.text.rstrip())
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        return SourceProblem(f"{type(error).__name__}: {error}", None, None)


def _not_decoded(data: bytes) -> SourceProblem | None:
    """Return the encoding problem of a source that compiles, such as arbitrary bytes in a comment.

    Python can import such a module, but the DSL cannot read its source.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:  # a byte in the first two lines; an unknown coding would not compile
        encoding = "utf-8"
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = data.split(b"\n")[line - 1].decode(encoding, "replace").rstrip()
        what = f"byte 0x{data[error.start]:02x} is not {encoding}; save the file as UTF-8, or declare its coding"
        return SourceProblem(what, line, text)
    return None
