"""Source lines of a kernel's instructions: places to stop, and the names that its author gave to registers.

PTX of CuTe DSL names no variable. A register has the name of a variable where the source shows it: a statement assigns
to one name, and exactly one register that its instructions write is read by those of other statements; or a statement
assigns the parts of a special register (``tid``, ``ctaid`` ...) to a tuple of names. Other registers have none.
"""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import NamedTuple

from pytest_nvfp4.sim.debug.errors import CommandError
from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Special
from pytest_nvfp4.syntax import parse

PTX = "ptx"
"""The file of instructions without a source line, whose lines are those of the PTX."""
_MOST_BYTES = 4 << 20


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{PurePosixPath(self.file).name}:{self.number}"


def line_of(instruction: Instruction) -> Line:
    """Return the source line of an instruction."""
    source = instruction.location
    return Line(PTX, instruction.ptx_line) if source is None else Line(source.file, source.line)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    text = "".join(linecache.getlines(file))
    try:
        return parse(text if len(text) <= _MOST_BYTES else "")
    except SyntaxError:  # the file has changed, or is no Python
        return parse("")


def breakpoint_lines(file: str) -> list[int]:
    """Return the lines of the calls of ``breakpoint()`` in a Python file."""
    return sorted(
        node.lineno
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "breakpoint"
    )


class Place(NamedTuple):
    """Lines of a file, from the one that was asked for to the last one of its block, or to itself."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return str(Line(self.file, self.first))

    def holds(self, line: Line) -> bool:
        """Return whether a line is one of them."""
        return line.file == self.file and self.first <= line.number <= self.last


class Lines:
    """The lines of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.of = [line_of(instruction) for instruction in kernel.instructions]
        self.files = sorted({line.file for line in self.of})
        self._flow = Flow(kernel)

    def at(self, text: str) -> tuple[Place, frozenset[int]]:
        """Return the lines that ``FILE:LINE`` or ``LINE`` names, and the instructions by which they are entered.

        For a line without instructions they are that line and the rest of its block: what runs there next may have
        any of them. Raises CommandError if none has instructions.
        """
        name, _, digits = text.rpartition(":")
        if not digits.isdecimal():
            raise CommandError(f"{text!r} is no place: write FILE:LINE, LINE, barrier or fault")
        wanted = int(digits)
        files = [file for file in self.files if not name or _fits(file, name)]
        files = [file for file in files if file != PTX or name == PTX or self.files == [PTX]]
        if not files:
            known = ", ".join(sorted({PurePosixPath(file).name for file in self.files}))
            raise CommandError(f"no instruction comes from {name}; the kernel's files are {known}")
        for file in files:
            exact = Line(file, wanted) in self.of
            place = Place(file, wanted, wanted if exact else _end_of_block(file, wanted))
            if entries := self._entries(place):
                return place, entries
        raise CommandError(f"no instruction of the kernel comes from {text}, or from a later line of its block")

    def _entries(self, place: Place) -> frozenset[int]:
        """Return the instructions of some lines that instructions of other lines come before."""
        inside = [place.holds(line) for line in self.of]
        entries = {0} if inside[:1] == [True] else set()
        for at, here in enumerate(inside):
            if not here:
                entries |= {after for after in self._flow.successors(at) if after < len(inside) and inside[after]}
        return frozenset(entries)

    def breakpoints(self) -> list[str]:
        """Return the places of ``breakpoint()`` in the kernel's files."""
        return [str(Line(file, number)) for file in self.files if file != PTX for number in breakpoint_lines(file)]


def _fits(file: str, name: str) -> bool:
    return file == name or file.endswith(f"/{name}") or PurePosixPath(file).name == PurePosixPath(name).name


def _end_of_block(file: str, line: int) -> int:
    """Return the last line of the innermost block of statements that a line is in; the line itself in none."""
    ends = []
    for node in ast.walk(_tree(file)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and not isinstance(node, ast.Module):
                last = block[-1].end_lineno or block[-1].lineno
                if block[0].lineno <= line <= last:
                    ends.append((last - block[0].lineno, last))
    return min(ends)[1] if ends else line


def author_names(kernel: Kernel) -> dict[int, str]:
    """Return the author's names of registers, by slot, where they are known."""
    of: dict[Line, tuple[tuple[str, ...], list[Instruction]]] = {}
    owners: dict[int, Line] = {}
    for instruction in kernel.instructions:
        source = instruction.location
        if source is None or (found := _assignments(source.file).get(source.line)) is None:
            continue
        start, names = found
        key = Line(source.file, start)
        of.setdefault(key, (names, []))[1].append(instruction)
        owners[instruction.index] = key
    readers: dict[int, set[Line | None]] = defaultdict(set)
    for instruction in kernel.instructions:
        for register in sources(instruction):
            readers[register.slot].add(owners.get(instruction.index))
    known: dict[int, str] = {}
    for key, (names, instructions) in of.items():
        if len(names) > 1:
            for instruction in instructions:
                axis = _axis(instruction)
                if axis is not None and axis < len(names) and names[axis] != "_":
                    known.setdefault(results(instruction)[0].slot, names[axis])
            continue
        written = {register.slot for instruction in instructions for register in results(instruction)}
        leaving = {slot for slot in written if readers[slot] - {key}}
        if len(leaving) == 1:
            known.setdefault(leaving.pop(), names[0])
    return known


def _axis(instruction: Instruction) -> int | None:
    """Return the axis of a ``mov`` from a special register: 0 for ``%tid.x``."""
    special = instruction.operands[1] if instruction.root == "mov" and len(instruction.operands) == 2 else None
    if not isinstance(special, Special) or special.name[-2:] not in (".x", ".y", ".z"):
        return None
    return "xyz".index(special.name[-1])


@lru_cache(maxsize=64)
def _assignments(file: str) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Return the assignments to names by their lines; a line with two of them has none."""
    by_line: dict[int, tuple[int, tuple[str, ...]] | None] = {}
    for node in ast.walk(_tree(file)):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        items: Iterable[ast.expr] = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(item.id if isinstance(item, ast.Name) else "" for item in items)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            by_line[line] = None if line in by_line or not all(names) else (node.lineno, names)
    return {line: found for line, found in by_line.items() if found is not None}
