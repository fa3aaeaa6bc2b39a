"""Table of all modelled opcodes, by prefix, collected from the units."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from pytest_nvfp4.sim.lower.emitter import Lowering
from pytest_nvfp4.sim.ptx.syntax import Instruction

_COMPUTING = frozenset({"shfl", "vote", "match", "redux", "elect", "activemask", "movmatrix", "mma"})
"""Opcodes besides those of ``alu`` whose only effect is their result."""
_UNITS = ("alu", "memory", "sync", "tma", "tcgen05", "wgmma")


@cache
def lowerings() -> Mapping[str, Lowering]:
    """Return the lowering of each opcode prefix. Raises ValueError if two units define one prefix."""
    found: dict[str, Lowering] = {}
    for unit in _UNITS:
        table = import_module(f"pytest_nvfp4.sim.{unit}.table")
        for prefix, lowering in table.LOWERINGS.items():
            if prefix in found:
                raise ValueError(f"{prefix} is claimed twice, the second time by {unit}")
            found[prefix] = lowering
    return found


@cache
def blocking() -> frozenset[str]:
    """Return the prefixes of instructions that may have to wait."""
    found: frozenset[str] = frozenset()
    for unit in _UNITS:
        table = import_module(f"pytest_nvfp4.sim.{unit}.table")
        found |= getattr(table, "BLOCKING", frozenset())
    return found


def computing(ins: Instruction) -> bool:
    """Return whether the only effect of an instruction is a result that follows from its operands."""
    return ins.root in _arithmetic()


@cache
def _arithmetic() -> frozenset[str]:
    prefixes = import_module("pytest_nvfp4.sim.alu.table").LOWERINGS
    return _COMPUTING | {prefix.partition(".")[0] for prefix in prefixes}
