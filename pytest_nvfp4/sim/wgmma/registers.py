"""Registers of ``wgmma.mma_async`` in a kernel's code: which hold accumulators, and which are written unfenced."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.sim.deferred import renaming
from pytest_nvfp4.sim.ptx.roles import results
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Kernel, Operand, Register, Vector

__all__ = ["accumulators", "is_mma", "unfenced"]

_LEAVES = frozenset({"ret", "exit", "brx", "trap"})


def is_mma(instruction: Instruction) -> bool:
    """Whether an instruction is a ``wgmma.mma_async``."""
    return instruction.parts[:2] == ("wgmma", "mma_async")


def _registers(operands: Iterable[Operand]) -> list[Register]:
    found: list[Register] = []
    for operand in operands:
        items = operand.items if isinstance(operand, Vector) else ()
        found.extend(item for item in items if isinstance(item, Register))
    return found


def accumulators(instruction: Instruction) -> list[Register]:
    """The registers of a ``wgmma.mma_async``'s accumulator; none of another instruction."""
    return _registers(instruction.operands[:1]) if is_mma(instruction) else []


def _constant(instruction: Instruction) -> bool:
    return instruction.root == "mov" and isinstance(instruction.operands[-1], Immediate)


def unfenced(kernel: Kernel) -> dict[int, str]:
    """For every ``wgmma.mma_async`` by place: an operand register that is written before it with no fence in between.

    Looked for in code that runs straight into the instruction. A ``mov`` that only renames does not count: LLVM writes
    it where loops close, and ptxas removes it. Nor does the ``mov`` of a constant: LLVM sinks the zeros of an
    accumulator to the instruction, below the fence (rests on NVIDIA's kernels).
    """
    found: dict[int, str] = {}
    instructions = kernel.instructions
    for instruction in instructions:
        if not is_mma(instruction):
            continue
        watched = {register.slot for register in _registers(instruction.operands[:2])}
        for before in reversed(instructions[max(0, instruction.index - 4096) : instruction.index]):
            if before.parts[:2] == ("wgmma", "fence"):
                break
            if before.root in _LEAVES or (before.root == "bra" and before.guard is None):
                break
            if is_mma(before) or renaming(before) is not None or _constant(before):
                continue
            written = next((register for register in results(before) if register.slot in watched), None)
            if written is not None:
                found[instruction.index] = written.name
                break
    return found
