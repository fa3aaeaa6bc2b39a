"""Parse Python source that a kernel's author wrote."""

from __future__ import annotations

import ast
import threading

_LOCK = threading.RLock()
"""CPython 3.11 and 3.12 count the depth of nodes per interpreter: threads that parse at once raise SystemError."""


def parse(source: str | bytes) -> ast.Module:
    """Return the syntax tree of a module. Raises SyntaxError, also for NUL bytes and for nesting that is too deep."""
    try:
        with _LOCK:
            return ast.parse(source)
    except (RecursionError, MemoryError):
        raise SyntaxError("an expression of the file is nested too deeply") from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None
