"""Registers of ``wgmma.mma_async`` in a kernel's code: accumulators, and operands written without a fence."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.sim.deferred import renaming
from pytest_nvfp4.sim.ptx.roles import results
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Kernel, Operand, Register, Vector

_EXITS = frozenset({"ret", "exit", "brx", "trap"})
_WINDOW = 4096
"""Instructions before a ``wgmma.mma_async`` that are searched for writes of its registers."""


def is_mma(instruction: Instruction) -> bool:
    """Return whether an instruction is a ``wgmma.mma_async``."""
    return instruction.parts[:2] == ("wgmma", "mma_async")


def _registers(operands: Iterable[Operand]) -> list[Register]:
    vectors = [operand.items for operand in operands if isinstance(operand, Vector)]
    return [item for items in vectors for item in items if isinstance(item, Register)]


def accumulators(instruction: Instruction) -> list[Register]:
    """Return the registers of a ``wgmma.mma_async``'s accumulator; none for another instruction."""
    return _registers(instruction.operands[:1]) if is_mma(instruction) else []


def _constant(instruction: Instruction) -> bool:
    return instruction.root == "mov" and isinstance(instruction.operands[-1], Immediate)


def unfenced(kernel: Kernel) -> dict[int, str]:
    """Return by index of each ``wgmma.mma_async`` an operand register written before it with no fence in between.

    Only straight-line code before the instruction is searched. A ``mov`` that only renames does not count: LLVM emits
    it where loops close, and ptxas removes it. Neither does the ``mov`` of a constant: LLVM sinks the zeros of an
    accumulator to the instruction, below the fence (observed in NVIDIA's kernels).
    """
    names: dict[int, str] = {}
    instructions = kernel.instructions
    for instruction in instructions:
        if not is_mma(instruction):
            continue
        watched = {register.slot for register in _registers(instruction.operands[:2])}
        for before in reversed(instructions[max(0, instruction.index - _WINDOW) : instruction.index]):
            if before.parts[:2] == ("wgmma", "fence"):
                break
            if before.root in _EXITS or (before.root == "bra" and before.guard is None):
                break
            if is_mma(before) or renaming(before) is not None or _constant(before):
                continue
            written = next((register for register in results(before) if register.slot in watched), None)
            if written is not None:
                names[instruction.index] = written.name
                break
    return names
