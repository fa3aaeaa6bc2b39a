"""Register values that are computed when something looks at them.

A tensor instruction's results are often only passed on to the next one. Such a register holds a ``Pending`` in place
of an array; a ``mov`` that only renames (a register to a register, a 32-bit register to its two halves, two halves to
a register) moves it about, and every other read settles it first. Which registers can hold one is known from the code
(``deferred_slots``), so that no other read pays for the question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.ptx.roles import results as written
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Label, Operand, Register, Sink, Vector

__all__ = ["NOTHING_DEFERRED", "DeferredSlots", "Pending", "Source", "deferred_slots", "joined", "renaming", "split"]


class Source(Protocol):
    """What computes the values of a set of registers."""

    def settle(self, index: int) -> Bits:
        """The value of the register of that number. Raises Fault if it must not be looked at now."""


class Pending:
    """The value of register ``index`` of ``source``, not computed yet."""

    __slots__ = ("index", "source")

    def __init__(self, source: Source, index: int) -> None:
        self.source = source
        self.index = index

    def settle(self) -> Bits:
        """The value."""
        return self.source.settle(self.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """For numpy functions that meet one, such as the merge of two groups of lanes."""
        del copy
        value = np.asarray(self.settle())
        return value if dtype is None else value.astype(dtype)


class _Halves:
    """The two halves of a 32-bit ``Pending``, low half first."""

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
    """The two halves of a pending register as pending registers of 16 bits."""
    halves = _Halves(whole)
    return Pending(halves, 0), Pending(halves, 1)


def joined(low: Any, high: Any) -> Pending | None:
    """The pending register of which these are the halves, if they are."""
    if low.__class__ is Pending and high.__class__ is Pending and low.source is high.source:
        source = low.source
        if isinstance(source, _Halves) and (low.index, high.index) == (0, 1):
            return source.whole
    return None


@dataclass(frozen=True, slots=True)
class DeferredSlots:
    """Slots that can hold a ``Pending``, and whether any is renamed (so that two registers can hold the same one)."""

    slots: frozenset[int]
    copied: bool


NOTHING_DEFERRED = DeferredSlots(frozenset(), copied=False)
Renaming = tuple[tuple[Operand, ...], tuple[Operand, ...]]


def renaming(instruction: Instruction) -> Renaming | None:
    """The targets and sources of a ``mov`` that only renames: one and one, two and one, or one and two; else None."""
    operands = instruction.operands
    if instruction.root != "mov" or len(operands) != 2:
        return None
    target, source = operands
    if isinstance(target, Register) and isinstance(source, Register) and target.bits == source.bits:
        return (target,), (source,)
    for whole, halves in ((source, target), (target, source)):
        if isinstance(whole, Register) and whole.bits == 32 and isinstance(halves, Vector) and len(halves.items) == 2:
            registers = [item for item in halves.items if isinstance(item, Register)]
            sinks = sum(isinstance(item, Sink) for item in halves.items) if halves is target else 0
            if len(registers) + sinks == 2 and all(item.bits == 16 for item in registers):
                return (halves.items, (whole,)) if halves is target else ((whole,), halves.items)
    return None


def deferred_slots(kernel: Kernel, results: Callable[[Instruction], list[Register]]) -> DeferredSlots:
    """The slots into which ``results`` of any instruction go, and those that they are renamed to, in any order.

    Renaming a register counts unless something else is known to have been written to it just before: compilers like
    to clear an accumulator by clearing its first register and copying that.
    """
    found = {register.slot for instruction in kernel.instructions for register in results(instruction)}
    if not found:
        return NOTHING_DEFERRED
    labels = {
        item.index
        for instruction in kernel.instructions
        for operand in instruction.operands
        for item in (operand.items if isinstance(operand, Vector) else (operand,))
        if isinstance(item, Label)
    }
    plain: set[int] = set()
    """Slots that hold a plain value at the place of the walk."""
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
            if sources & found:
                copied = True
                grown = grown or not targets <= found
                found |= targets
    return DeferredSlots(frozenset(found), copied)
