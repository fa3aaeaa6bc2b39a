"""Batches: calls of one function in a block, made as one call on the operands of all of them.

Compilers unroll loops, so that a block does the same arithmetic on many registers, often one chain of it behind the
other. A call of numpy on 32 lanes costs as much as one on some hundred. A call is put off until a line needs its
result, and is made together with those of the same function at the same *level*: one more than the highest level of the
calls that it waits for itself. It has no effect but its result and cannot fail (``alu.lift``), so that nothing else
tells the two orders apart; a group that no line needs is not made. Predicates are not put off: ``lower.frames`` reads
those that guard what follows a line. A line that assigns to no register, such as a store, waits in order with others
until a line does, so that the calls for several of them are made together.

A call that was put off gives its result a name of its own (``b0``, ``b1``, ...), which stands for the register until
another line writes that. The results of calls that are made together have a name (``j0``, ...) for all of them, too: if
they are an operand of later such calls, in steps of one length, they are passed on as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

_CALL = re.compile(r"    ([vt]\d+) = (\w+)\(((?:\w+)(?:, \w+)*)\)")
_COPY = re.compile(r"    ([vt]\d+) = ([vt]\d+)")
_NAME = re.compile(r"\b[vt]\d+\b")
_RESULT = re.compile(r"\bb\d+\b")
_ASSIGNMENT = re.compile(r"    ((?:[vt]\d+, )*[vt]\d+),? = (?!.*:=)")
"""The start of a line that does nothing but assign to registers."""
_READS = re.compile(r"    (R\[\d+\] = |[a-z_]\w*\()(?!.*:=)")
"""The start of a line that assigns to no register."""
_FEWEST = 3
"""Fewest calls that are made together: two of ``cvt.rn.f16x2.f32`` are faster one by one."""

_Group = tuple[int, str]
"""A level and a function."""


class _Call(NamedTuple):
    at: tuple[int, str]
    result: str
    operands: tuple[str, ...]


class _Made(NamedTuple):
    """Calls that are made together: the index of the line, the names of the results, and the call."""

    line: int
    results: list[str]
    call: str


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
            made.put_off(found[2], _Call(at, found[1], tuple(found[3].split(", "))))
        else:
            made.write(line, at)
    made.end()
    return made.lines, made.line_at


class _Block:
    """The lines written so far, and the calls that were put off."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line_at: list[tuple[int, str]] = []
        self._waiting: dict[_Group, list[_Call]] = {}
        self._group_of: dict[str, _Group] = {}
        """By name of a result, the group of its call, which waits."""
        self._readers: dict[str, set[_Group]] = {}
        """By name of a register, groups with a call that reads what the register itself holds."""
        self._stands: dict[str, str] = {}
        """By name of a register, the result that stands for it."""
        self._results = 0
        self._held: list[tuple[str, tuple[int, str]]] = []
        """Lines that assign to no register, which wait."""
        self._made: list[_Made] = []
        """The calls that are made together."""
        self._place: dict[str, tuple[int, int]] = {}
        """By result, its place: the number of these calls, and that of its own call among them."""
        self._whole: set[int] = set()
        """Their numbers, of those whose results a later call reads together."""

    def put_off(self, function: str, call: _Call) -> None:
        """Put a call off."""
        operands = tuple([self._stands.get(operand, operand) for operand in call.operands])
        groups = [self._group_of[operand] for operand in operands if operand in self._group_of]
        group = (max(groups)[0] + 1 if groups else 0, function)
        result = f"b{self._results}"
        self._results += 1
        self._waiting.setdefault(group, []).append(_Call(call.at, result, operands))
        self._group_of[result] = group
        for operand in operands:
            self._readers.setdefault(operand, set()).add(group)
        self._stands[call.result] = result

    def write(self, line: str, at: tuple[int, str]) -> None:
        """Write another line, after the calls whose results it needs, and those that it would change."""
        if (copy := _COPY.fullmatch(line)) is not None and self._stands.get(copy[2], "") in self._group_of:
            self._stands[copy[1]] = self._stands[copy[2]]
            return
        if _READS.match(line):
            self._held.append((self._standing(line), at))
            return
        self.release()
        assignment = _ASSIGNMENT.match(line)
        if assignment is not None:
            written, start = assignment[1].split(", "), assignment.end()
        else:  # it may assign to what it mentions, and the lines of a branch to anything
            branches = line.endswith(":") or line.startswith("     ")
            written, start = [*self._stands, *self._readers] if branches else _NAME.findall(line), len(line)
            self._settle(written, at)
        read = {self._stands[name] for name in _NAME.findall(line, start) if name in self._stands}
        changed = [group for name in written for group in self._readers.pop(name, ())]
        self._make([*(self._group_of[name] for name in read if name in self._group_of), *changed])
        text = line[:start] + self._standing(line[start:])
        for name in written:
            self._stands.pop(name, None)
        self._line(text, at)

    def release(self) -> None:
        """Write the lines that wait, after the calls whose results they need."""
        held, self._held = self._held, []
        read = {name for line, _ in held for name in _RESULT.findall(line)}
        self._make(self._group_of[name] for name in read if name in self._group_of)
        for line, at in held:
            self._line(line, at)

    def _standing(self, text: str) -> str:
        """Return the text with the results that stand for its registers."""
        return _NAME.sub(lambda name: self._stands.get(name[0], name[0]), text)

    def _settle(self, names: Iterable[str], at: tuple[int, str]) -> None:
        """Assign to registers the results that stand for them."""
        named = {name: self._stands.pop(name) for name in names if name in self._stands}
        needed = [self._group_of[result] for result in named.values() if result in self._group_of]
        self._make([*needed, *(group for name in named for group in self._readers.pop(name, ()))])
        for name, result in named.items():
            self._line(f"    {name} = {result}", at)

    def _make(self, groups: Iterable[_Group]) -> None:
        """Write the calls of groups that wait, and of those that they need, lower levels first."""
        needed: set[_Group] = set()
        pending = [group for group in groups if group in self._waiting]
        while pending:
            group = pending.pop()
            if group not in needed:
                needed.add(group)
                operands = (operand for call in self._waiting[group] for operand in call.operands)
                pending += [self._group_of[operand] for operand in operands if operand in self._group_of]
        for group in sorted(needed):
            self._call(group[1], self._waiting.pop(group))

    def _call(self, function: str, calls: Sequence[_Call]) -> None:
        for call in calls:
            del self._group_of[call.result]
        if len(calls) < _FEWEST:
            for call in calls:
                self._line(f"    {call.result} = {function}({', '.join(call.operands)})", call.at)
            return
        columns = ", ".join(map(self._column, zip(*(call.operands for call in calls), strict=True)))
        made = _Made(len(self.lines), [call.result for call in calls], f"{function}.together({columns})")
        self._place.update((result, (len(self._made), index)) for index, result in enumerate(made.results))
        self._made.append(made)
        self._line("", calls[0].at)  # ``end`` writes it, when its readers are known

    def _column(self, values: tuple[str, ...]) -> str:
        """Return the expression of an operand of calls that are made together."""
        number, first = self._place.get(values[0], (-1, 0))
        if number >= 0:
            results = self._made[number].results
            step = self._place.get(values[1], (number, first))[1] - first
            if step > 0 and tuple(results[first::step][: len(values)]) == values:
                self._whole.add(number)
                last = first + step * (len(values) - 1)
                return f"j{number}" if len(values) == len(results) else f"j{number}[{first}:{last + 1}:{step}]"
        return f"({', '.join(values)})"

    def end(self) -> None:
        """Write all that waits, and the calls that are made together."""
        self.release()
        read = {name for line in self.lines for name in _RESULT.findall(line)}
        read.update(name for made in self._made for name in _RESULT.findall(made.call))
        for number, made in enumerate(self._made):
            names = [", ".join(made.results)] if not read.isdisjoint(made.results) else []
            if number in self._whole:
                names.append(f"j{number}")
            self.lines[made.line] = f"    {' = '.join([*names, made.call])}"

    def _line(self, line: str, at: tuple[int, str]) -> None:
        self.lines.append(line)
        self.line_at.append(at)
