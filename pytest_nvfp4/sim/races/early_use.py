"""Registers of a ``tcgen05.ld`` that are used before a ``tcgen05.wait::ld``: from the code, not from a run.

PTX ISA, "tcgen05.ld" and "Register dependencies, same thread": the load is asynchronous, and its true register
dependencies are respected with or without a wait. What only moves registers about (``mov``, with or without packing) is
no use, for compilers put that before the wait by themselves; the moved value is followed.
"""

from __future__ import annotations

from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction

__all__ = ["early_uses"]

_Pending = dict[int, frozenset[int]]
"""By slot, the loads whose result it may hold and that may not have been waited for."""
_NONE: frozenset[int] = frozenset()


def early_uses(flow: Flow) -> dict[int, int]:
    """By ``tcgen05.ld``, the first instruction in the code that may use what it loads with no wait between."""
    instructions = flow.kernel.instructions
    if not any(ins.parts[:2] == ("tcgen05", "ld") for ins in instructions):
        return {}
    entries: dict[int, _Pending] = {number: {} for number in flow.order}
    waiting = list(flow.order)
    found: dict[int, int] = {}
    while waiting:
        number = waiting.pop(0)
        block = flow.blocks[number]
        pending = dict(entries[number])
        for index in range(block.start, block.stop):
            _step(instructions[index], pending, found)
        for successor in block.successors:
            if _merge(entries[successor], pending) and successor not in waiting:
                waiting.append(successor)
    return found


def _merge(entry: _Pending, pending: _Pending) -> bool:
    """Add what is pending where a block is left to where its successor is entered; whether that has grown."""
    grown = False
    for slot, loads in pending.items():
        known = entry.get(slot, _NONE)
        if not loads <= known:
            entry[slot] = known | loads
            grown = True
    return grown


def _step(ins: Instruction, pending: _Pending, found: dict[int, int]) -> None:
    if ins.parts[:2] == ("tcgen05", "ld"):
        for register in results(ins):
            pending[register.slot] = frozenset((ins.index,))
        return
    if ins.parts[:2] == ("tcgen05", "wait::ld"):
        pending.clear()
        return
    if not pending:
        return
    held = _NONE
    for register in sources(ins):
        held |= pending.get(register.slot, _NONE)
    if held and ins.root != "mov":
        for load in held:
            found[load] = min(ins.index, found.get(load, ins.index))
    for register in results(ins):
        if held and ins.root == "mov":
            pending[register.slot] = held
        elif ins.guard is None:
            pending.pop(register.slot, None)
