"""The variable to which a line of the user's Python assigns the value of a call."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import NamedTuple

from pytest_nvfp4.syntax import parse


class _Span(NamedTuple):
    """First line and column, last line and column, as ``co_positions`` and ``ast`` have them."""

    line: int
    column: int
    end_line: int
    end_column: int


def assigned_name(frame: FrameType) -> str | None:
    """Return the variable or attribute that gets the value of the call that a frame makes.

    The value is that of the call itself, or of methods of its result: in ``x = torch.zeros(4).view(2, 2)`` both calls
    are assigned to ``x``. None: the call is an argument or a part of something else, or the source is not known.
    """
    line, end_line, column, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return _names(frame.f_code.co_filename).get(_Span(line, column, end_line, end_column))


@lru_cache(maxsize=64)
def _names(file: str) -> dict[_Span, str]:
    try:
        tree = parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    return {
        _Span(call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0): name
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name, call in _assigned(target, node.value)
    }


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.Call]]:
    """Give the names of a target with the calls that make their values."""
    if isinstance(target, ast.Tuple | ast.List):
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            for one, of in zip(target.elts, value.elts, strict=True):
                yield from _assigned(one, of)
    elif isinstance(target, ast.Name | ast.Attribute):
        while isinstance(value, ast.Call | ast.Attribute):
            if isinstance(value, ast.Call):
                yield ast.unparse(target), value
                value = value.func
            else:
                value = value.value
