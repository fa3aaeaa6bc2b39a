"""Batches: calls of one function in a block, made as one call on the operands of all of them.

Compilers unroll loops, so that a block does the same arithmetic on many registers. A call of numpy on 32 lanes costs as
much as one on some hundred. A call is put off until a line reads its result, or overwrites what it reads, and is made
together with those of the same function that were put off till then. It has no effect but its result and cannot fail
(``alu.lift``), so that nothing else tells the two orders apart. Predicates are not put off: ``lower.frames`` reads
those that guard what follows a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

_CALL = re.compile(r"    ([vt]\d+) = (\w+)\(((?:\w+)(?:, \w+)*)\)")
_NAME = re.compile(r"\b[vt]\d+\b")
_LEAVES = re.compile(r"\s*(if .*:|else:)$|.*\b(return|raise)\b")
"""Lines after which others may not run."""
_FEWEST = 3
"""Fewest calls that are made together: two of ``cvt.rn.f16x2.f32`` are faster one by one."""


class _Call(NamedTuple):
    line: str
    at: tuple[int, str]
    result: str
    operands: tuple[str, ...]


def batched(
    lines: Sequence[str],
    line_at: Sequence[tuple[int, str]],
    names: Mapping[str, Any],
    predicates: Set[str] = frozenset(),
) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the lines of a block, with their places, where calls of functions that have ``together`` are batched.

    Args:
        lines, line_at: Those of ``Emitter``.
        names: The globals of the block, by which functions are called.
        predicates: The names of predicate registers.
    """
    made = _Block()
    for line, at in zip(lines, line_at, strict=True):
        found = _CALL.fullmatch(line)
        if found is not None and found[1] not in predicates and hasattr(names.get(found[2]), "together"):
            made.put_off(found[2], _Call(line, at, found[1], tuple(found[3].split(", "))))
        else:
            made.write(line, at)
    made.make(list(made.waiting))
    return made.lines, made.line_at


class _Block:
    """The lines written so far, and the calls that were put off, by function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line_at: list[tuple[int, str]] = []
        self.waiting: dict[str, list[_Call]] = {}

    def put_off(self, function: str, call: _Call) -> None:
        """Put a call off, after those that it depends on, and those that it would change."""
        self._make_those_with({call.result, *call.operands}, overwritten={call.result})
        self.waiting.setdefault(function, []).append(call)

    def write(self, line: str, at: tuple[int, str]) -> None:
        """Write another line, after the calls that it depends on, and those that it would change."""
        if self.waiting:
            if _LEAVES.match(line) or line.startswith("     "):
                self.make(list(self.waiting))
            else:
                mentioned = set(_NAME.findall(line))
                self._make_those_with(mentioned, overwritten=mentioned)
        self.lines.append(line)
        self.line_at.append(at)

    def _make_those_with(self, mentioned: set[str], *, overwritten: set[str]) -> None:
        """Make the calls whose result is mentioned, and those with an operand that is overwritten."""
        self.make(
            [
                function
                for function, calls in self.waiting.items()
                if any(call.result in mentioned or not overwritten.isdisjoint(call.operands) for call in calls)
            ]
        )

    def make(self, functions: Sequence[str]) -> None:
        """Write the calls of functions."""
        for function in functions:
            calls = self.waiting.pop(function)
            if len(calls) < _FEWEST:
                self.lines += [call.line for call in calls]
                self.line_at += [call.at for call in calls]
                continue
            results = ", ".join(call.result for call in calls)
            columns = (f"({', '.join(column)})" for column in zip(*(call.operands for call in calls), strict=True))
            self.lines.append(f"    {results} = {function}.together({', '.join(columns)})")
            self.line_at.append(calls[0].at)
