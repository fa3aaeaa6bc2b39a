"""Static search for uses of a ``tcgen05.ld``'s registers before a ``tcgen05.wait::ld``.

PTX ISA, "tcgen05.ld" and "Register dependencies, same thread": the load is asynchronous, and its true register
dependencies are respected with or without a wait. A ``mov``, with or without packing, does not count as a use, because
compilers move it before the wait; the analysis follows the moved value. This is a forward data-flow analysis over the
basic blocks, iterated to its fixed point.
"""

from __future__ import annotations

from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction

_Pending = dict[int, frozenset[int]]
"""By register slot, the loads whose result it may have and that may not have been waited for."""
_NONE: frozenset[int] = frozenset()


def early_uses(flow: Flow) -> dict[int, int]:
    """Return, by ``tcgen05.ld``, the first instruction in the code that may use its result without a wait between."""
    instructions = flow.kernel.instructions
    if not any(ins.parts[:2] == ("tcgen05", "ld") for ins in instructions):
        return {}
    entries: dict[int, _Pending] = {number: {} for number in flow.order}
    waiting = list(flow.order)
    uses: dict[int, int] = {}
    while waiting:
        number = waiting.pop(0)
        block = flow.blocks[number]
        pending = dict(entries[number])
        for index in range(block.start, block.stop):
            _step(instructions[index], pending, uses)
        for successor in block.successors:
            if _merge(entries[successor], pending) and successor not in waiting:
                waiting.append(successor)
    return uses


def _merge(entry: _Pending, pending: _Pending) -> bool:
    """Add the loads pending at a block's end to its successor's entry, and return whether that has grown."""
    grown = False
    for slot, loads in pending.items():
        known = entry.get(slot, _NONE)
        if not loads <= known:
            entry[slot] = known | loads
            grown = True
    return grown


def _step(ins: Instruction, pending: _Pending, uses: dict[int, int]) -> None:
    """Apply an instruction to the pending loads, and record the uses in it."""
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
            uses[load] = min(ins.index, uses.get(load, ins.index))
    for register in results(ins):
        if held and ins.root == "mov":
            pending[register.slot] = held
        elif ins.guard is None:
            pending.pop(register.slot, None)
