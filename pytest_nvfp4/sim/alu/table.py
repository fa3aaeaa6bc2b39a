"""Table of all arithmetic lowerings and of the forms that they cover.

Families that share a root (``add``: integers, f32, halves) are selected by the opcode's last part, its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from pytest_nvfp4.sim.alu import (
    bits,
    compare,
    convert,
    dot,
    extended,
    floating,
    half,
    integer,
    logic,
    move,
    multiply,
    narrow,
    select,
    shift,
    special,
    stochastic,
)  # fmt: skip
from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.syntax import Instruction

_MODULES: tuple[ModuleType, ...] = (
    integer, multiply, extended, logic, shift, bits, dot, compare, select, move, floating, special, half, convert,
    narrow, stochastic,
)  # fmt: skip


def _by_type(root: str, families: Mapping[str, Lowering]) -> Lowering:
    def lower(ins: Instruction, e: Emitter) -> None:
        family = families.get(ins.parts[-1])
        if family is None:
            raise Unsupported(f"{ins.opcode}: .{ins.parts[-1]} is not modelled for {root}")
        family(ins, e)

    return lower


def _merge() -> dict[str, Lowering]:
    table: dict[str, Lowering] = {}
    shared: dict[str, dict[str, Lowering]] = {}
    for module in _MODULES:
        for key, lowering in getattr(module, "LOWERINGS", {}).items():
            assert key not in table, key
            table[key] = lowering
        for root, families in getattr(module, "BY_TYPE", {}).items():
            known = shared.setdefault(root, {})
            assert known.keys().isdisjoint(families), root
            known.update(families)
    for root, families in shared.items():
        assert root not in table, root
        table[root] = _by_type(root, families)
    return table


LOWERINGS: Mapping[str, Lowering] = _merge()


def covered() -> list[str]:
    """Return the modelled forms, ``opcode .modifiers``: ``(a|b)`` is one of, ``[a]`` is optional."""
    return [form for module in _MODULES for form in module.FORMS]
