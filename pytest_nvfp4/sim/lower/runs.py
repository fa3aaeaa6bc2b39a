"""Runs of stores in the lines of a block, made as one call (``memory.write_run``).

The stores remain, under an ``if``, for when the call declines: each has its line, by which a fault or a finding is
placed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_nvfp4.sim.memory.write import write_global
from pytest_nvfp4.sim.memory.write_run import write_run
from pytest_nvfp4.sim.ptx.syntax import Instruction

_STORE = re.compile(
    r"( +)(\w+)\(w, (\w+), (?:(v\d+)|\((v\d+) \+ (\d+) & \d+\)), \(((?:[a-z]?\d+, )+)\), (\w+), (\d+)\)"
)
_FEWEST = 6
"""Fewest stores that are made together. Measured: the call takes 18 us for 4 and 21 us for 8, one store 3.7 us."""
_FUNCTION = "write_run"


class _Store(NamedTuple):
    indent: str
    mask: str
    base: str
    offset: int
    values: str
    access: str
    at: int


def with_runs(
    lines: Sequence[str],
    line_at: Sequence[tuple[int, str]],
    names: dict[str, Any],
    instructions: Sequence[Instruction],
) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the lines of a block, with their places, where runs of stores are made together.

    A run has one mask, base, opcode and source line.

    Args:
        lines, line_at: Those of ``Emitter``.
        names: The globals of the block; ``write_run`` is added.
        instructions: Those of the kernel.
    """
    if sum("write_global" in line for line in lines) < _FEWEST:
        return list(lines), list(line_at)
    written: list[str] = []
    places: list[tuple[int, str]] = []
    for start, stop, stores in _runs(lines, names, instructions):
        if stores:
            first = stores[0]
            offsets = repr(tuple([store.offset for store in stores]))
            values = "".join(store.values for store in stores)
            call = f"{first.mask}, {first.base}, {offsets}, ({values}), {first.access}, {first.at}"
            names[_FUNCTION] = write_run
            written.append(f"{first.indent}if not {_FUNCTION}(w, {call}):")
            places.append(line_at[start])
        written += ["    " * bool(stores) + line for line in lines[start:stop]]
        places += line_at[start:stop]
    return written, places


def _runs(
    lines: Sequence[str], names: Mapping[str, Any], instructions: Sequence[Instruction]
) -> Iterator[tuple[int, int, list[_Store]]]:
    """Yield the lines from ``start`` to ``stop``, with their stores if they are a run."""
    start = 0
    run: list[_Store] = []
    for number, line in enumerate(lines):
        store = _store(line, names)
        if run and (store is None or not _alike(run[-1], store, names, instructions)):
            yield start, number, run if len(run) >= _FEWEST else []
            start, run = number, []
        if store is not None:
            if not run and start < number:
                yield start, number, []
                start = number
            run.append(store)
    yield start, len(lines), run if len(run) >= _FEWEST else []


def _store(line: str, names: Mapping[str, Any]) -> _Store | None:
    found = _STORE.fullmatch(line)
    if found is None or names.get(found[2]) is not write_global:
        return None
    indent, _, mask, base, shifted, by, values, access, at = found.groups()
    if names[access].bits == 128:
        return None
    offset = int(by or 0)
    return _Store(indent, mask, base or shifted, offset - (offset >> 63 << 64), values, access, int(at))


def _alike(one: _Store, other: _Store, names: Mapping[str, Any], instructions: Sequence[Instruction]) -> bool:
    return (
        one.indent == other.indent
        and one.mask == other.mask
        and one.base == other.base
        and names[one.access].opcode == names[other.access].opcode
        and instructions[one.at].location == instructions[other.at].location
    )
