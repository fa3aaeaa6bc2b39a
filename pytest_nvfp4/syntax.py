"""Parse Python source that a kernel's author wrote."""

from __future__ import annotations

import ast
import threading
from typing import cast

_LOCK = threading.RLock()
"""CPython 3.11 and 3.12 count the depth of nodes per interpreter: threads that parse at once raise SystemError."""


def parse(source: str | bytes) -> ast.Module:
    """Return the syntax tree of a module. Raises SyntaxError, also for NUL bytes and for nesting that is too deep."""
    return cast("ast.Module", _parse(source, "exec"))


def parse_expression(source: str) -> ast.Expression:
    """Return the syntax tree of an expression. Raises SyntaxError as :func:`parse` does."""
    return cast("ast.Expression", _parse(source, "eval"))


def _parse(source: str | bytes, mode: str) -> ast.AST:
    try:
        with _LOCK:
            return ast.parse(source, mode=mode)
    except (RecursionError, MemoryError):
        raise SyntaxError("an expression of the file is nested too deeply") from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None
