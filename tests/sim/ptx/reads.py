"""Registers that some way from a place reads."""

from __future__ import annotations

from tests.sim.ptx.programs import END, Program


def is_read(program: Program, slot: int, start: int) -> bool:
    """Whether some way from a place reads a register before it overwrites it."""
    seen: set[int] = set()
    work: list[int | str] = [start]
    while work:
        place = work.pop()
        if place == END or place in seen:
            continue
        seen.add(place)
        step = program.steps[place]
        if slot in step.reads:
            return True
        if slot not in step.kills:
            work.extend(program.following(place))
    return False
