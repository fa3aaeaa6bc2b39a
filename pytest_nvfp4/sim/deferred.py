"""Register values that are computed when something looks at them.

A tensor instruction's results are often only passed on to the next one. Such a register holds a ``Pending`` in place
of an array; plain copies (``mov``) move it about, and every other read settles it first. Which registers can hold one
is known from the code (``deferred_slots``), so that no other read pays for the question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.ptx.roles import results as written
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Label, Register, Vector

__all__ = ["DeferredSlots", "Pending", "Source", "deferred_slots", "is_copy"]


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


@dataclass(frozen=True, slots=True)
class DeferredSlots:
    """Slots that can hold a ``Pending``, and whether any is copied (so that two registers can hold the same one)."""

    slots: frozenset[int]
    copied: bool


def is_copy(instruction: Instruction) -> bool:
    """Whether an instruction only copies one register to another of the same width."""
    operands = instruction.operands
    return (
        instruction.root == "mov"
        and len(operands) == 2
        and isinstance(operands[0], Register)
        and isinstance(operands[1], Register)
        and operands[0].bits == operands[1].bits
    )


def deferred_slots(kernel: Kernel, results: Callable[[Instruction], list[Register]]) -> DeferredSlots:
    """The slots into which ``results`` of any instruction go, and those that they are copied to, in any order.

    A copy of such a register counts unless something else is known to have been written to it just before: compilers
    like to clear an accumulator by clearing its first register and copying that.
    """
    found = {register.slot for instruction in kernel.instructions for register in results(instruction)}
    if not found:
        return DeferredSlots(frozenset(), copied=False)
    targets = {
        item.index
        for instruction in kernel.instructions
        for operand in instruction.operands
        for item in (operand.items if isinstance(operand, Vector) else (operand,))
        if isinstance(item, Label)
    }
    plain: set[int] = set()
    """Slots that hold a plain value at the place of the walk."""
    copies: list[tuple[int, int]] = []
    for instruction in kernel.instructions:
        if instruction.index in targets:
            plain = set()
        if is_copy(instruction):
            target, source = instruction.operands
            assert isinstance(target, Register)
            assert isinstance(source, Register)
            if source.slot in plain:
                if instruction.guard is None:
                    plain.add(target.slot)
            else:
                plain.discard(target.slot)
                copies.append((target.slot, source.slot))
            continue
        plain.update(register.slot for register in written(instruction) if instruction.guard is None)
        plain.difference_update(register.slot for register in results(instruction))
    copied = False
    grown = True
    while grown:
        grown = False
        for target_slot, source_slot in copies:
            if source_slot in found:
                copied = True
                if target_slot not in found:
                    found.add(target_slot)
                    grown = True
    return DeferredSlots(frozenset(found), copied)
