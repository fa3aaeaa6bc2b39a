"""Constants at the top level of a kernel's file: their values, and the file's text with other values.

A constant is a name that one top-level assignment binds, alone or in a tuple (``TILE_M, TILE_N = 128, 256``), to a
number, a text, a truth value or None, or to an expression of such values and of constants before it. Expressions may
contain operators and the functions of ``_FUNCTIONS``. Nothing of the file is executed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_nvfp4.syntax import parse

Value: TypeAlias = int | float | str | bool | None

_MOST_BITS = 4096
"""Largest integer that an expression may have, in bits; a shift or a power could else take all memory."""
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"max": max, "min": min, "abs": abs, "int": int}
_METHODS = ("bit_length", "bit_count")
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
"""Ends of lines as Python counts them: a lone carriage return is one."""


class ConstantError(ValueError):
    """A name that is no constant of the file, or a value that it cannot have; the message says why."""


@dataclass(frozen=True, slots=True)
class ModuleConstant:
    """A constant of a file.

    Attributes:
        name: Its name.
        value: Its value.
        line: Line of the assignment.
        place: The expression that gives its value.
    """

    name: str
    value: Value
    line: int
    place: ast.expr


def constants(source: str) -> dict[str, ModuleConstant]:
    """Return the constants of a file by name. Raises SyntaxError."""
    found, _ = _read(source)
    return found


def with_constants(source: str, values: Mapping[str, Value]) -> str:
    """Return a file's text with other values of some constants; all other text and the line numbers are unchanged.

    Raises:
        ConstantError: A name is no constant of the file, or a value is of another type than the constant's.
        SyntaxError: The file is not Python.
    """
    found, others = _read(source)
    edits: list[tuple[ast.expr, str]] = []
    for name, value in values.items():
        constant = found.get(name)
        if constant is None:
            known = ", ".join(found) or "none"
            reason = others.get(name, "is not assigned at the top level of the file")
            raise ConstantError(f"{name} {reason}; constants of the file are: {known}")
        if not _finite(value):
            raise ConstantError(f"{name} cannot be {value!r}, which is not a finite number")
        if not _same_type(constant.value, value):
            raise ConstantError(
                f"{name} is {constant.value!r} in line {constant.line}; {value!r} is not of this type "
                f"({type(constant.value).__name__})"
            )
        edits.append((constant.place, repr(value)))
    return _edited(source, edits)


def parse_value(text: str) -> Value:
    """Return a value of the command line: a literal of Python, else the text itself."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, int | float | str | bool | None) else text


def same(one: Value, other: Value) -> bool:
    """Return whether two values are the same to a kernel: ``1``, ``1.0`` and ``True`` are three."""
    return type(one) is type(other) and repr(one) == repr(other)


def _finite(value: Value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _same_type(old: Value, new: Value) -> bool:
    if old is None or type(old) is type(new):
        return True
    return isinstance(old, float) and type(new) is int


def _edited(source: str, edits: list[tuple[ast.expr, str]]) -> str:
    # The columns of the syntax tree count bytes of UTF-8, whatever the encoding of the file.
    text = source.encode()
    starts = [0, *(end.end() for end in _LINE_ENDS.finditer(text))]
    for place, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        assert place.end_lineno is not None
        assert place.end_col_offset is not None
        begin = starts[place.lineno - 1] + place.col_offset
        end = starts[place.end_lineno - 1] + place.end_col_offset
        # Line numbers of findings are those of the user's file, so the expression keeps its number of lines.
        rows = place.end_lineno - place.lineno
        text = text[:begin] + (f"({new}{chr(10) * rows})" if rows else new).encode() + text[end:]
    return text.decode()


def _read(source: str) -> tuple[dict[str, ModuleConstant], dict[str, str]]:
    """Return the constants of a file, and why other names that it binds are none."""
    module = parse(source)
    found: dict[str, ModuleConstant] = {}
    others: dict[str, str] = {}
    bound: dict[str, int] = {}
    for name, line in bound_names(module):
        if name in bound:
            others[name] = f"is bound more than once, in lines {bound[name]} and {line}"
        bound.setdefault(name, line)
    for statement in module.body:
        for name, place in _assigned(statement):
            if name in others:
                continue
            try:
                value = _value(place, found)
            except (ConstantError, ArithmeticError, TypeError, ValueError, AttributeError) as error:
                others[name] = f"is not a constant: its value in line {statement.lineno} {error}"
                continue
            except RecursionError:
                others[name] = f"is not a constant: its value in line {statement.lineno} is nested too deeply"
                continue
            if isinstance(value, float) and not math.isfinite(value):
                others[name] = f"is {value!r} in line {statement.lineno}, which is not a finite number"
            elif isinstance(value, int | float | str | bool | None):
                found[name] = ModuleConstant(name, value, statement.lineno, place)
            else:
                others[name] = f"is a {type(value).__name__} in line {statement.lineno}, not a single value"
    for name, line in bound.items():
        if name not in found:
            others.setdefault(name, f"is not bound by a plain assignment at the top level (line {line})")
    return found, others


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement assigns, each with the expression of its own value."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
        yield statement.target.id, statement.value
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for name, own in zip(target.elts, value.elts, strict=True):
            if isinstance(name, ast.Name) and not isinstance(own, ast.Starred):
                yield name.id, own


def bound_names(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every binding of a name of the module, also those within statements and by ``global``."""
    outer: list[ast.AST] = list(module.body)
    inner: list[ast.AST] = []
    while outer:
        node = outer.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
            inner.append(node)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id, node.lineno
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0], node.lineno
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            # Their variables are their own, but := binds in the module.
            outer.extend(inside.target for inside in ast.walk(node) if isinstance(inside, ast.NamedExpr))
            continue
        outer.extend(ast.iter_child_nodes(node))
    for scope in inner:
        for node in ast.walk(scope):
            if isinstance(node, ast.Global):
                yield from ((name, node.lineno) for name in node.names)


def _value(node: ast.expr, known: Mapping[str, ModuleConstant]) -> Any:
    """Return the value of an expression. Raises ConstantError if it is not one of constants."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in known:
            return known[name].value
        case ast.Tuple(elts=parts):
            return tuple(_value(part, known) for part in parts)
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, known))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _operation(op, _value(left, known), _value(right, known))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, known), _value(right, known))
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, known) else other, known)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, known) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_value(part, known) for part in parts)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and name not in known:
            return _FUNCTIONS[name](*(_value(argument, known) for argument in arguments))
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[], keywords=[]) if name in _METHODS:
            number = _value(owner, known)
            if isinstance(number, int):
                return getattr(number, name)()
    raise ConstantError(f"is `{ast.unparse(node)}`")


def _operation(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(left, str | tuple) or isinstance(right, str | tuple):
        raise ConstantError("is computed from text or tuples")
    bits = left.bit_length() if isinstance(left, int) else 64
    if isinstance(op, ast.LShift | ast.Pow) and bits * (right if isinstance(op, ast.Pow) else 1) + right > _MOST_BITS:
        raise ConstantError("is too large a number")
    return _OPERATORS[type(op)](left, right)
