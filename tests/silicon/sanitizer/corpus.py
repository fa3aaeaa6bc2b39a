"""All programs, by name."""

from __future__ import annotations

from tests.silicon.sanitizer import clusters, copies, pipelines, shared
from tests.silicon.sanitizer.program import Program, programs_of

__all__ = ["PROGRAMS", "by_name"]

PROGRAMS: tuple[Program, ...] = tuple(
    program
    for module in (shared, pipelines, copies, clusters)
    for idiom in module.IDIOMS
    for program in programs_of(idiom)
)


def by_name(name: str) -> Program:
    """The program of a name. Raises KeyError."""
    return {program.name: program for program in PROGRAMS}[name]
