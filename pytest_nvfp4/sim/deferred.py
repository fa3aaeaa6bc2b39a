"""Register values that are computed on first use.

A tensor instruction's results are often only passed on to the next tensor instruction. Such a register holds a
``Pending`` in place of an array. A ``mov`` that only renames (a register to a register, a 32-bit register to its two
halves, two halves to a register) copies the ``Pending``; any other read settles it first. ``deferred_slots`` derives
from the code which registers can hold a ``Pending``, so reads of other registers need no check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.ptx.roles import results as written
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Label, Operand, Register, Sink, Vector


class Source(Protocol):
    """Computation of the values of a set of registers."""

    def settle(self, index: int) -> Bits:
        """Return the value of a register by number. Raises Fault if it must not be read now."""


class Pending:
    """Value of register ``index`` of ``source``, not computed yet."""

    __slots__ = ("index", "source")

    def __init__(self, source: Source, index: int) -> None:
        self.source = source
        self.index = index

    def settle(self) -> Bits:
        """Return the value."""
        return self.source.settle(self.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Convert to an array, for numpy functions such as the merge of two groups of lanes."""
        del copy
        value = np.asarray(self.settle())
        return value if dtype is None else value.astype(dtype)


class _Halves:
    """Source of the two halves of a 32-bit ``Pending``, low half first."""

    __slots__ = ("whole",)

    def __init__(self, whole: Pending) -> None:
        self.whole = whole

    def settle(self, index: int) -> Bits:
        value = self.whole.settle()
        if isinstance(value, int):
            return value >> 16 * index & 0xFFFF
        halves: NDArray[Any] = (value >> np.uint32(16 * index)).astype(np.uint16)
        return halves


def split(whole: Pending) -> tuple[Pending, Pending]:
    """Return the two halves of a pending register as pending registers of 16 bits, low half first."""
    halves = _Halves(whole)
    return Pending(halves, 0), Pending(halves, 1)


def joined(low: Any, high: Any) -> Pending | None:
    """Return the pending register whose halves these are, or None."""
    if low.__class__ is Pending and high.__class__ is Pending and low.source is high.source:
        source = low.source
        if isinstance(source, _Halves) and (low.index, high.index) == (0, 1):
            return source.whole
    return None


@dataclass(frozen=True, slots=True)
class DeferredSlots:
    """Slots that can hold a ``Pending``, and whether any is renamed, so that two registers can hold the same one."""

    slots: frozenset[int]
    copied: bool


NOTHING_DEFERRED = DeferredSlots(frozenset(), copied=False)


class Renaming(NamedTuple):
    """Operands of a ``mov`` that only renames: one target and one source, two and one, or one and two."""

    targets: tuple[Operand, ...]
    sources: tuple[Operand, ...]


def renaming(instruction: Instruction) -> Renaming | None:
    """Return the operands of a ``mov`` that only renames, or None for any other instruction."""
    operands = instruction.operands
    if instruction.root != "mov" or len(operands) != 2:
        return None
    target, source = operands
    if isinstance(target, Register) and isinstance(source, Register) and target.bits == source.bits:
        return Renaming((target,), (source,))
    for whole, halves in ((source, target), (target, source)):
        if isinstance(whole, Register) and whole.bits == 32 and isinstance(halves, Vector) and len(halves.items) == 2:
            registers = [item for item in halves.items if isinstance(item, Register)]
            sinks = sum(isinstance(item, Sink) for item in halves.items) if halves is target else 0
            if len(registers) + sinks == 2 and all(item.bits == 16 for item in registers):
                return Renaming(halves.items, (whole,)) if halves is target else Renaming((whole,), halves.items)
    return None


def deferred_slots(kernel: Kernel, results: Callable[[Instruction], list[Register]]) -> DeferredSlots:
    """Return the slots of all ``results`` of instructions, and the slots that these are renamed to.

    A renaming does not count if its source is known to hold a plain value: compilers clear an accumulator by clearing
    its first register and copying that register.
    """
    slots = {register.slot for instruction in kernel.instructions for register in results(instruction)}
    if not slots:
        return NOTHING_DEFERRED
    labels = {
        item.index
        for instruction in kernel.instructions
        for operand in instruction.operands
        for item in (operand.items if isinstance(operand, Vector) else (operand,))
        if isinstance(item, Label)
    }
    plain: set[int] = set()
    """Slots that hold a plain value at the current instruction."""
    renamings: list[tuple[set[int], set[int]]] = []
    for instruction in kernel.instructions:
        if instruction.index in labels:
            plain = set()
        renamed = renaming(instruction)
        if renamed is not None:
            targets, sources = ({item.slot for item in items if isinstance(item, Register)} for items in renamed)
            if not sources <= plain:
                plain -= targets
                renamings.append((targets, sources))
            elif instruction.guard is None:
                plain |= targets
            continue
        plain.update(register.slot for register in written(instruction) if instruction.guard is None)
        plain.difference_update(register.slot for register in results(instruction))
    copied = False
    grown = True
    while grown:
        grown = False
        for targets, sources in renamings:
            if sources & slots:
                copied = True
                grown = grown or not targets <= slots
                slots |= targets
    return DeferredSlots(frozenset(slots), copied)
