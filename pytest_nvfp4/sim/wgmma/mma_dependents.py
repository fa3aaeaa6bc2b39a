"""Which elements of the result of ``mma.sync`` depend on a value that some registers hold.

Row m of D depends on row m of A and its scale factors, column n on column n of B and its scale factors, and an element
on that of C. Kernels load a tile of fewer rows than the instruction has and drop the others' results.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import bits_of, bools
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand, Register, Vector
from pytest_nvfp4.sim.wgmma.fragments import a_matrix, accumulator_matrix, accumulator_registers, b_matrix

_SCALES = (4, 6)
"""Operands with scale factors of A and of B; a selector follows each."""


def dependents_of_product(ins: Instruction, dependents: Mapping[int, int]) -> dict[int, int]:
    """Return the lanes of each register of D that depend on a value, by slot.

    Args:
        ins: An ``mma.sync.m16n8kK`` whose dense operands, or scale factors, hold the value.
        dependents: The lanes that depend on the value, by slot.
    """
    d, a, b, c = ins.operands[:4]
    of_a, of_b, of_c = (_held(operand, dependents) for operand in (a, b, c))
    rows: NDArray[np.bool_] = np.asarray(a_matrix(of_a, np.uint8).any(axis=1))
    columns: NDArray[np.bool_] = np.asarray(b_matrix(of_b, np.uint8).any(axis=1))
    if len(ins.operands) > _SCALES[1]:
        scale_a, scale_b = (_held(ins.operands[number], dependents)[0].reshape(8, 4) != 0 for number in _SCALES)
        # Row m's are in lanes 4 (m % 8) + m / 8 and 2 further on, column n's in lanes 4 n to 4 n + 3.
        rows |= np.concatenate([scale_a[:, half::2].any(axis=1) for half in (0, 1)])
        columns |= scale_b.any(axis=1)
    dtype = np.uint32 if len(of_c) == 4 else np.uint16
    elements = accumulator_matrix(of_c, dtype).astype(bool) | rows[:, None] | columns
    lanes = accumulator_registers(elements.astype(dtype)) != 0
    found = {slot: bits_of(held) for slot, held in zip(_slots(d), lanes, strict=True)}
    return {slot: held for slot, held in found.items() if held and slot >= 0}


def _held(operand: Operand, dependents: Mapping[int, int]) -> NDArray[np.uint32]:
    """Return registers as ``(count, 32)``, all ones in the lanes that depend on the value."""
    masks = [dependents.get(slot, 0) for slot in _slots(operand)]
    return np.array([np.where(np.broadcast_to(bools(mask), 32), 0xFFFF_FFFF, 0) for mask in masks], np.uint32)


def _slots(operand: Operand) -> list[int]:
    """Return the slots of an operand's registers; -1 for one that is none."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return [item.slot if isinstance(item, Register) else -1 for item in items]
