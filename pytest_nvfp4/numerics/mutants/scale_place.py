"""Wrong kernels that read scale factors from the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, Float64, Int64
from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.kernel_model import TILE_K, Operand, Steps
from pytest_nvfp4.numerics.mutants.base import Mutant
from pytest_nvfp4.numerics.quantise import BLOCK

Offsets: TypeAlias = Callable[[Int64, Int64, int], Int64]


def _placed(offsets: Offsets, *, operands: tuple[Operand, ...] = ("a", "b")) -> Steps:
    """Read the scale factors of these operands from ``offsets(row, block, blocks)`` of the flat layout."""

    def scales(problem: ProblemInput, index: int, operand: Operand) -> Float64:
        wrong = offsets if operand in operands else None
        return E4M3.decode(model.read_scales(problem.groups[index], operand, wrong)).astype(np.float64)

    return Steps(scales=scales)


def _moved(move: Callable[[Int64, Int64, int], tuple[Int64, Int64]]) -> Offsets:
    """Read the right layout at ``move(row, block, blocks)`` instead of ``(row, block)``."""

    def offsets(row: Int64, block: Int64, blocks: int) -> Int64:
        row, block = move(row, block, blocks)
        return scale_layout.offset(row, block, blocks=blocks)

    return offsets


def _column_order(row: Int64, block: Int64, blocks: int) -> Int64:
    tile = scale_layout.offset(row // 128 * 128, block // 4 * 4, blocks=blocks)
    return tile + block % 4 * 128 + row % 128


def _row_order(row: Int64, block: Int64, blocks: int) -> Int64:
    return row * blocks + block


def _exchange_bands(row: Int64, block: Int64, _blocks: int) -> tuple[Int64, Int64]:
    band = row % 128 // 32
    exchanged = np.where(band == 1, row + 32, np.where(band == 2, row - 32, row))
    return exchanged, block


def _exchanged_scales(problem: ProblemInput, index: int, operand: Operand) -> Float64:
    """Read SFB's bytes for SFA and SFA's for SFB, at the right offsets (wrapping)."""
    inputs = problem.groups[index]
    plain = inputs.sfa if operand == "a" else inputs.sfb
    flat = inputs.sfb_flat() if operand == "a" else inputs.sfa_flat()
    return _from_flat(flat, plain)


def _other_group_scales(problem: ProblemInput, index: int, operand: Operand) -> Float64:
    inputs, other = problem.groups[index], problem.groups[(index + 1) % len(problem.groups)]
    plain = inputs.sfa if operand == "a" else inputs.sfb
    return _from_flat(other.sfa_flat() if operand == "a" else other.sfb_flat(), plain)


def _from_flat(flat: Bytes, plain: Bytes) -> Float64:
    rows, blocks = plain.shape
    if not flat.size:
        return np.ones(plain.shape)
    at = scale_layout.offset(np.arange(rows)[:, None], np.arange(blocks)[None, :], blocks=blocks)
    return E4M3.decode(np.take(flat, at % flat.size)).astype(np.float64)


def _without(operand_left_out: Operand) -> Steps:
    def scales(problem: ProblemInput, index: int, operand: Operand) -> Float64:
        right = model.scales(problem, index, operand)
        return np.ones_like(right) if operand == operand_left_out else right

    return Steps(scales=scales)


_STEPS: tuple[tuple[str, str, Steps], ...] = (
    ("sf_plain", "reordered scale factors read as if they were plain [rows, k/16]", _placed(_row_order)),
    ("sf_transposed", "a 128x4 scale tile read column by column", _placed(_column_order)),
    (
        "sf_bands_exchanged",
        "rows 32-63 and 64-95 exchanged in the scale tile",
        _placed(_moved(_exchange_bands)),
    ),
    (
        "sf_quadrant_only",
        "scale factors of rows 0-31 used for all 128 rows of a tile (TMEM copy to one quadrant)",
        _placed(_moved(lambda row, block, _: (row // 128 * 128 + row % 32, block))),
    ),
    (
        "sf_first_row_tile",
        "scale tile of rows 0-127 used for every row tile",
        _placed(_moved(lambda row, block, _: (row % 128, block))),
    ),
    (
        "sfa_row_off_by_one",
        "SFA of the next row",
        _placed(_moved(lambda row, block, _: (row + 1, block)), operands=("a",)),
    ),
    (
        "sf_k_reversed",
        "the four k-blocks of a scale tile in reverse order",
        _placed(_moved(lambda row, block, _: (row, block // 4 * 4 + 3 - block % 4))),
    ),
    (
        "sf_k_off_by_one",
        "scale factor of the next k-block, the last one wrapping to the first",
        _placed(_moved(lambda row, block, blocks: (row, (block + 1) % blocks))),
    ),
    (
        "sf_per_32",
        "one scale factor for 32 elements (MXFP4's block)",
        _placed(_moved(lambda row, block, _: (row, block // 2 * 2))),
    ),
    (
        "sf_first_k_tile",
        "scale factors of the first k-tile of 256 used for all",
        _placed(_moved(lambda row, block, _: (row, block % (TILE_K // BLOCK)))),
    ),
    (
        "sf_stage_late",
        "scale factors of the previous k-tile of 256 from the second on",
        _placed(
            _moved(lambda row, block, _: (row, np.where(block >= TILE_K // BLOCK, block - TILE_K // BLOCK, block)))
        ),
    ),
    ("sfa_sfb_exchanged", "SFA used for B and SFB for A", Steps(scales=_exchanged_scales)),
    ("sf_other_group", "scale factors of the next group", Steps(scales=_other_group_scales)),
    ("sfa_ignored", "SFA taken as 1", _without("a")),
    ("sfb_ignored", "SFB taken as 1", _without("b")),
)

SCALE_PLACE: tuple[Mutant, ...] = tuple(Mutant(name, "scale place", text, steps) for name, text, steps in _STEPS)
