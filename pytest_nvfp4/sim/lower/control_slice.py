"""What control flow, addresses and barriers of a kernel follow from, and what therefore needs no arithmetic.

A simulation without data (``Monitor.without_data``) executes only the instructions that decide what happens: those
whose results may reach a guard, a branch, an address, an operand of a barrier, copy or matrix descriptor. Loads execute
too; the monitor follows which of their bytes are unknown. What remains is the arithmetic on data, which is left out.

Registers are followed without regard to order, and local memory as one variable, so that the slice is at least what is
needed. An opcode whose operands are not listed here as data decides by all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from pytest_nvfp4.sim.lower.control import meets
from pytest_nvfp4.sim.lower.table import computing
from pytest_nvfp4.sim.ptx.roles import known, results, sources
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Kernel, Operand, Register, Symbol, Vector

_NONE: frozenset[int] = frozenset()
_LOCAL = -1
"""The slot that stands for all local memory and the parameters of calls."""
_CARRY = -2
"""The slot of the condition code, which no operand names (PTX ISA, "Extended-Precision Arithmetic")."""
_CARRIED = frozenset({"addc", "subc", "madc"})
_WRITES = frozenset({"st", "stmatrix", "red", "atom"})
_READS = frozenset({"ld", "ldu", "ldmatrix", "atom"})
_UNKNOWN = ("tcgen05.ld", "wgmma.mma_async", "multimem.ld_reduce")
"""Opcodes whose results are always data: products, and what was copied to tensor memory."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """What one instruction does to registers, by slot.

    Attributes:
        deciding: Slots that decide what happens; none if the instruction only computes.
        read: Slots that its results are computed from.
        results: Slots that it writes.
        stored: Slots whose values it writes to memory.
        source: Whether its results come from memory.
        unknown: Whether its results are always data.
        computes: Whether its results are its only effect, so that it may be left out.
    """

    deciding: frozenset[int]
    read: frozenset[int]
    results: frozenset[int]
    stored: frozenset[int] = frozenset()
    source: bool = False
    unknown: bool = False
    computes: bool = False


class ControlSlice:
    """The slice of a kernel.

    Attributes:
        omitted: Instructions that are left out.
        deciding: Loads whose bytes must be known, because control may depend on them.
        unknown: Instructions with results that are always data and that control may depend on: they cannot execute.
        stored: For each instruction that writes values to memory, the loads that they may descend from; None if they
            may descend from a product, so that they are data in any case.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._parameters = frozenset(parameter.name for parameter in kernel.parameters)
        self._has_local = any(variable.space == "local" for variable in kernel.variables)
        self._flows = [self._flow(ins) for ins in kernel.instructions]
        self._writers: dict[int, list[int]] = {}
        for at, flow in enumerate(self._flows):
            for slot in flow.results:
                self._writers.setdefault(slot, []).append(at)
        products = self._forward(slot for flow in self._flows if flow.unknown for slot in flow.results)
        decides = self._backward(slot for flow in self._flows for slot in flow.deciding)
        values = {
            at: flow.stored for at, flow in enumerate(self._flows) if flow.stored and products.isdisjoint(flow.stored)
        }
        needed = decides | self._backward(slot for slots in values.values() for slot in slots)
        self.omitted = frozenset(
            at for at, flow in enumerate(self._flows) if flow.computes and needed.isdisjoint(flow.results)
        )
        self.deciding = frozenset(
            at for at, flow in enumerate(self._flows) if flow.source and not decides.isdisjoint(flow.results)
        )
        self.unknown = frozenset(
            at for at, flow in enumerate(self._flows) if flow.unknown and not decides.isdisjoint(flow.results)
        )
        self.stored: Mapping[int, frozenset[int] | None] = {
            at: self._loads(values[at]) if at in values else None for at, flow in enumerate(self._flows) if flow.stored
        }

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for at, flow in enumerate(self._flows):
            for slot in flow.read:
                found.setdefault(slot, []).append(at)
        return found

    def _forward(self, slots: Iterable[int]) -> set[int]:
        """Return the slots that values of some slots may reach without memory."""
        found = set(slots)
        todo = list(found)
        while todo:
            for at in self._readers.get(todo.pop(), ()):
                new = self._flows[at].results - found
                found |= new
                todo += new
        return found

    def _backward(self, slots: Iterable[int]) -> set[int]:
        """Return the slots that values of some slots may descend from without memory, and these."""
        found = set(slots)
        todo = list(found)
        while todo:
            for at in self._writers.get(todo.pop(), ()):
                new = self._flows[at].read - found
                found |= new
                todo += new
        return found

    def _loads(self, slots: frozenset[int]) -> frozenset[int]:
        reached = self._backward(slots)
        return frozenset(at for slot in reached for at in self._writers.get(slot, ()) if self._flows[at].source)

    def _flow(self, ins: Instruction) -> _Flow:
        read, written = _slots(sources(ins)), _slots(results(ins))
        if not known(ins):
            return _Flow(read | written, _NONE, written)
        # Where the guard is false, a result keeps its value.
        kept = _NONE if ins.guard is None else written
        if computing(ins):
            carry = frozenset({_CARRY})
            read |= carry if ins.root in _CARRIED else _NONE
            written |= carry if ins.has("cc") else _NONE
            meeting = _meeting(ins)
            return _Flow(meeting, read if ins.guard is None else read | written, written, computes=not meeting)
        positions = _data_operands(ins)
        data = _slots(register for position in positions for register in _registers(ins.operands[position]))
        deciding = _slots(_deciding(ins, positions))
        if ins.opcode.startswith(_UNKNOWN):
            return _Flow(deciding, kept, written, unknown=True)
        local, elsewhere = self._spaces(ins)
        own = frozenset({_LOCAL}) if local else _NONE
        if ins.root in _READS:
            return _Flow(deciding, kept | own, written, stored=data, source=elsewhere)
        if local:
            return _Flow(deciding, data | own, own, stored=data if elsewhere else _NONE)
        if ins.root == "call":
            return _Flow(deciding | {_LOCAL}, kept, written)
        return _Flow(deciding, kept, written, stored=data)

    def _spaces(self, ins: Instruction) -> tuple[bool, bool]:
        """Return whether an access may be to local memory or a call's parameters, and whether to other memory."""
        if ins.root not in ("ld", "st") or ins.has("async") or ins.has("bulk"):
            return False, True
        spaces = {part.partition("::")[0] for part in ins.parts}
        if "param" in spaces:
            at = ins.operands[1 if ins.root == "ld" else 0]
            named = isinstance(at, Address) and isinstance(at.base, Symbol) and at.base.name in self._parameters
            return not named, False
        if "local" in spaces:
            return True, False
        return spaces.isdisjoint({"global", "shared", "const"}) and self._has_local, True


def _meeting(ins: Instruction) -> frozenset[int]:
    """Return what decides which lanes meet at an instruction, if they do: its guard and its member mask."""
    if not meets(ins):
        return _NONE
    mask = () if ins.has("aligned") else ins.operands[-1:]
    registers = [register for operand in mask for register in _registers(operand)]
    return _slots(registers if ins.guard is None else [*registers, ins.guard.register])


def _data_operands(ins: Instruction) -> tuple[int, ...]:
    """Return the positions of the operands whose values are stored or multiplied, and decide nothing."""
    count = len(ins.operands)
    if ins.opcode.startswith("tcgen05.st"):
        return (count - 1,)
    if ins.opcode.startswith("wgmma.mma_async"):
        return (0, 1) if isinstance(ins.operands[1], Vector) else (0,)
    if ins.root not in _WRITES or ins.has("bulk"):
        return ()
    return tuple(range(2, count)) if ins.root == "atom" else (1,) if count > 1 else ()


def _deciding(ins: Instruction, data: tuple[int, ...]) -> Iterable[Register]:
    """Return the registers that an instruction reads, but for those that are data operands only."""
    if not data:
        yield from sources(ins)
        return
    if ins.guard is not None:
        yield ins.guard.register
    first = 1 if ins.root == "atom" else 0
    for position, operand in enumerate(ins.operands):
        if position not in data and position >= first:
            yield from _registers(operand)
        if isinstance(operand, Address) and isinstance(operand.base, Register):
            yield operand.base


def _slots(registers: Iterable[Register]) -> frozenset[int]:
    return frozenset(register.slot for register in registers)


def _registers(operand: Operand) -> Iterable[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _registers(item)
