"""Accesses of global and shared memory in the PTX of a kernel, joined to the tensors that their statements name.

A layout bounds the width of an access; the compiler chooses it, and may choose less (a predicate on each element, an
alignment that it cannot prove). Insights and the epilogue's ranking therefore count with the width in the PTX. An
access belongs to a tensor if the statement at its line names the tensor, or a variable that is bound from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_nvfp4.finding import Location
from pytest_nvfp4.layout.roles import base_name
from pytest_nvfp4.sim.memory.forms import TYPES
from pytest_nvfp4.sim.ptx.lexer import PtxError
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.source import statement
from pytest_nvfp4.toolchain.trace import Trace, Value

Direction = Literal["load", "store"]
Space = Literal["gmem", "smem"]

_VECTOR = re.compile(r"v([248])")
_MEMORY = re.compile(r"\b[gs]mem\b")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Access:
    """Loads or stores of one width by one statement.

    Attributes:
        space: Global or shared memory.
        direction: Load or store.
        width: Bytes of one lane.
        location: Line of the kernel's Python; None if the PTX names none.
        names: Identifiers in the statement at that line.
    """

    space: Space
    direction: Direction
    width: int
    location: Location | None
    names: frozenset[str]

    def __str__(self) -> str:
        place = f" at {Path(self.location.file).name}:{self.location.line}" if self.location is not None else ""
        return f"{self.direction}s of {self.width} B{place}"


def accesses_in(trace: Trace) -> list[Access]:
    """Return the distinct accesses in the PTX of a trace; empty if there is no readable PTX.

    Kernels of libraries are left out. Copies by TMA, bulk copies and ``ldmatrix`` are not accesses of a lane.
    """
    library = {code.symbol for code in trace.code if code.library}
    found: dict[Access, None] = {}
    for path in trace.artifact_paths("ptx"):
        try:
            kernels = parse(path.read_text(encoding="utf-8"), source=str(path)).kernels
        except (OSError, PtxError):
            continue
        for name, kernel in kernels.items():
            if name not in library:
                accesses = map(_access, kernel.instructions)
                found |= dict.fromkeys(access for access in accesses if access is not None)
    return list(found)


def _access(instruction: Instruction) -> Access | None:
    parts = instruction.parts
    space: Space | None = "gmem" if "global" in parts else "smem" if {"shared", "shared::cta"} & set(parts) else None
    direction: Direction
    if space is not None and parts[0] in ("ld", "st") and parts[-1] in TYPES:
        vector = next((int(match[1]) for part in parts if (match := _VECTOR.fullmatch(part))), 1)
        direction, width = ("load" if parts[0] == "ld" else "store"), vector * TYPES[parts[-1]][1] // 8
    elif parts[:2] == ("cp", "async") and "bulk" not in parts and "global" in parts:
        size = instruction.operands[2]
        assert isinstance(size, Immediate)  # PTX ISA, "cp.async": cp-size is a literal 4, 8 or 16
        space, direction, width = "gmem", "load", size.value
    else:
        return None
    location = instruction.location
    text = statement(location.file, location.line) if location is not None else ""
    return Access(space, direction, width, location, frozenset(_NAME.findall(text)))


def accesses_of(name: str, accesses: Sequence[Access], values: Sequence[Value]) -> list[Access]:
    """Return the accesses whose statements name a tensor of a trace.

    Args:
        name: Name of the tensor, ``scope.variable``.
        accesses: Accesses of the trace.
        values: Values of the trace: a variable of the scope whose binding names the tensor stands for it too.
    """
    scope = name.rpartition(".")[0]
    bound: dict[str, set[str]] = {}
    for value in values:
        if value.name.rpartition(".")[0] == scope and _MEMORY.search(value.type):
            names = set(_NAME.findall(statement(value.file, value.line).partition("=")[2]))
            bound.setdefault(base_name(value.name), set()).update(names)
    aliases = {base_name(name)}
    while more := {other for other, names in bound.items() if names & aliases} - aliases:
        aliases |= more
    return [access for access in accesses if access.names & aliases]
