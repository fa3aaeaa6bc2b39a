"""Wrong kernels that miss, repeat or misplace tiles, or let what lies outside the tensors in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.numerics.arrays import Float32, HalfBits
from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.numerics.kernel_model import TILE, TILE_K, Kernel, Steps
from pytest_nvfp4.numerics.mutants.base import Mutant
from pytest_nvfp4.numerics.quantise import BLOCK


def _stored(change: Callable[[HalfBits, HalfBits, GroupInput], None]) -> Steps:
    """Store correctly, then apply ``change(buffer, out, inputs)`` in place."""

    def store(out: HalfBits, inputs: GroupInput) -> HalfBits:
        buffer = model.store(out, inputs)
        change(buffer, out, inputs)
        return buffer

    return Steps(store=store)


def _overrun(buffer: HalfBits, _out: HalfBits, inputs: GroupInput) -> None:
    """Store rows up to the end of the last row tile too: A is zero there (the tensor map's fill), so is C."""
    rows = inputs.group.m
    inputs.split_c(buffer)[2][: -rows % TILE] = 0


def _rows_missing(buffer: HalfBits, _out: HalfBits, inputs: GroupInput) -> None:
    rows = inputs.group.m
    inputs.split_c(buffer)[1][rows // TILE * TILE :] = inputs.guard.poison


def _tile_missed(buffer: HalfBits, _out: HalfBits, inputs: GroupInput) -> None:
    *_, (rows, columns) = [*_tiles_of(inputs)] or [(slice(0, 0), slice(0, 0))]
    inputs.split_c(buffer)[1][rows, columns] = inputs.guard.poison


def _last_column_tile_missed(buffer: HalfBits, _out: HalfBits, inputs: GroupInput) -> None:
    """Count tiles of 256 columns as n // 256."""
    inputs.split_c(buffer)[1][:, inputs.group.n // 256 * 256 :] = inputs.guard.poison


def _lone_row_zero(buffer: HalfBits, out: HalfBits, inputs: GroupInput) -> None:
    """Count M = 1 as no row tile, with a C that was cleared before."""
    if len(out) == 1:
        inputs.split_c(buffer)[1][:] = 0


def _transposed_tiles(buffer: HalfBits, out: HalfBits, inputs: GroupInput) -> None:
    c = inputs.split_c(buffer)[1]
    for rows, columns in _tiles_of(inputs):
        side = min(rows.stop - rows.start, columns.stop - columns.start)
        square = slice(rows.start, rows.start + side), slice(columns.start, columns.start + side)
        c[square] = out[square].T


def _columns_exchanged(buffer: HalfBits, out: HalfBits, inputs: GroupInput) -> None:
    c = inputs.split_c(buffer)[1]
    c[:, 0::2], c[:, 1::2] = out[:, 1::2], out[:, 0::2]


def _shifted_last_tile(buffer: HalfBits, out: HalfBits, inputs: GroupInput) -> None:
    """Store the ragged last row tile where a whole one would end: at row m - 128."""
    rows = inputs.group.m
    ragged = rows % TILE
    if rows > TILE and ragged:
        c = inputs.split_c(buffer)[1]
        c[rows - TILE : rows - TILE + ragged] = out[rows - ragged :]


def _tiles_of(inputs: GroupInput) -> list[tuple[slice, slice]]:
    """Return the output tiles of a group, see :func:`~pytest_nvfp4.numerics.kernel_model.tiles`."""
    return list(model.tiles(inputs.group.m, inputs.group.n))


def _tile_twice(problem: ProblemInput, index: int) -> HalfBits:
    """Compute the last tile in two CTAs that accumulate into the same place."""
    inputs = problem.groups[index]
    total = model.RIGHT.accumulators(problem, index)
    for rows, columns in _tiles_of(inputs)[-1:]:
        with np.errstate(over="ignore"):
            total[rows, columns] *= 2
    return model.store(model.convert(total), inputs)


def _not_cleared(problem: ProblemInput, index: int) -> HalfBits:
    """Start each tile from the accumulators of the tile before it (the first of the group from zero)."""
    inputs = problem.groups[index]
    total = model.RIGHT.accumulators(problem, index)
    spans = _tiles_of(inputs)
    right = total.copy()
    for (rows, columns), (before_rows, before_columns) in zip(spans[1:], spans, strict=False):
        height = min(rows.stop - rows.start, before_rows.stop - before_rows.start)
        left = right[before_rows.start : before_rows.start + height, before_columns]
        total[rows.start : rows.start + height, columns] += left
    if len(spans) == 1 and index:
        _add_previous_group(problem, index, total)
    return model.store(model.convert(total), inputs)


def _add_previous_group(problem: ProblemInput, index: int, total: Float32) -> None:
    before = problem.groups[index - 1]
    for rows, columns in _tiles_of(before)[-1:]:
        left = model.RIGHT.accumulators(problem, index - 1)[rows, columns]
        height, width = min(left.shape[0], total.shape[0]), min(left.shape[1], total.shape[1])
        total[:height, :width] += left[:height, :width]


def _cleared_by_product(problem: ProblemInput, index: int) -> HalfBits:
    """Clear accumulators by multiplying with zero: a NaN of an earlier tile or group stays."""
    total = model.RIGHT.accumulators(problem, index)
    stuck = np.zeros((TILE, TILE), dtype=np.bool_)
    for earlier in range(index):
        left = np.isnan(model.RIGHT.accumulators(problem, earlier))
        for rows, columns in _tiles_of(problem.groups[earlier]):
            part = left[rows, columns]
            stuck[: part.shape[0], : part.shape[1]] |= part
    own = np.isnan(total)
    for rows, columns in _tiles_of(problem.groups[index]):
        part = own[rows, columns]
        total[rows, columns][stuck[: part.shape[0], : part.shape[1]]] = np.nan
        stuck[: part.shape[0], : part.shape[1]] |= part
    return model.store(model.convert(total), problem.groups[index])


def _other_groups_output(problem: ProblemInput, index: int) -> HalfBits:
    """Use the first group's entry of the pointer table for the last group, whose own C keeps its contents."""
    if index and index == len(problem.groups) - 1:
        return problem.groups[index].c_buffer()
    return model.RIGHT(problem, index)


def _first_groups_operand(problem: ProblemInput, index: int) -> HalfBits:
    """Use A of the previous group (as far as it fits): a tensor map updated after its use."""
    inputs = problem.groups[index]
    b = model.RIGHT.operands(problem, index)[1]
    a = model.RIGHT.operands(problem, index)[0].copy()
    other = model.RIGHT.operands(problem, index - 1)[0]
    height, width = min(a.shape[0], other.shape[0]), min(a.shape[1], other.shape[1])
    a[:height, :width] = other[:height, :width]
    with np.errstate(invalid="ignore"):
        return model.store(model.convert(model.product(a, b)), inputs)


_TILES: tuple[tuple[str, str, Kernel], ...] = (
    ("rows_unwritten", "rows of the ragged last row tile not stored", _stored(_rows_missing)),
    ("tile_missed", "the last tile of a group not computed", _stored(_tile_missed)),
    ("lone_row_zero", "the only row of a group not computed, in a C cleared before", _stored(_lone_row_zero)),
    ("column_tile_missed", "columns past the last multiple of 256 not computed", _stored(_last_column_tile_missed)),
    ("tile_twice", "the last tile of a group computed twice, accumulating", _tile_twice),
    ("not_cleared", "accumulators not cleared between tiles", _not_cleared),
    ("cleared_by_product", "accumulators cleared by multiplying with zero: NaN stays", _cleared_by_product),
    ("tile_transposed", "every output tile stored transposed", _stored(_transposed_tiles)),
    ("columns_exchanged", "neighbouring columns exchanged in the store", _stored(_columns_exchanged)),
    ("ragged_tile_shifted", "the ragged last row tile also stored at row m - 128", _stored(_shifted_last_tile)),
    ("stale_group", "the last group's C keeps what it held", _other_groups_output),
    ("stale_tensor_map", "A of the previous group", _first_groups_operand),
)


def _extra_k_tile(problem: ProblemInput, index: int) -> HalfBits:
    """Add one k-tile too many: A and B are zero there (the tensor map's fill), scale factors are what follows."""
    inputs = problem.groups[index]
    total = model.RIGHT.accumulators(problem, index)
    extra = TILE_K // BLOCK
    factors = []
    for operand, plain in (("a", inputs.sfa), ("b", inputs.sfb)):
        rows, blocks = plain.shape
        flat = inputs.sfa_flat(guarded=True) if operand == "a" else inputs.sfb_flat(guarded=True)
        row, block = np.arange(rows)[:, None], np.arange(blocks, blocks + extra)[None, :]
        # As the kernel computes it: the next tiles of the same row of tiles, that is the next row of tiles or the end.
        at = scale_layout.offset(row, block % 4, blocks=blocks) + block // 4 * scale_layout.TILE_BYTES
        factors.append(E4M3.decode(np.take(flat, at % flat.size)).astype(np.float64))
    with np.errstate(invalid="ignore"):
        added = (factors[0] * 0.0) @ (factors[1] * 0.0).T
        total = (total + added).astype(np.float32)
    return model.store(model.convert(total), inputs)


def _clamped_add(problem: ProblemInput, index: int) -> HalfBits:
    """Add the rows past the last to the last row: A is zero there, its scales are padding."""
    inputs = problem.groups[index]
    total = model.RIGHT.accumulators(problem, index)
    m, ragged = inputs.group.m, -inputs.group.m % TILE
    if m and ragged:
        blocks = inputs.sfa.shape[1]
        row, block = np.arange(m, m + ragged)[:, None], np.arange(blocks)[None, :]
        factors = E4M3.decode(np.take(inputs.sfa_flat(), scale_layout.offset(row, block, blocks=blocks)))
        b = model.RIGHT.operands(problem, index)[1]
        with np.errstate(invalid="ignore"):
            total[m - 1] += ((np.repeat(factors, BLOCK, axis=1)[:, : b.shape[1]] * 0.0) @ b.T).sum(axis=0)
    return model.store(model.convert(total), inputs)


_OUTSIDE: tuple[tuple[str, str, Kernel], ...] = (
    ("ragged_overrun", "the ragged last row tile stored whole, past the end of C", _stored(_overrun)),
    ("sf_beyond_k", "one k-tile too many: zero operands under scale factors behind the tensor", _extra_k_tile),
    (
        "sf_padding_added",
        "padding rows added to the last row: zero operands under padding's scale factors",
        _clamped_add,
    ),
)

TILE_AND_OUTSIDE: tuple[Mutant, ...] = (
    *(Mutant(name, "tile", text, kernel) for name, text, kernel in _TILES),
    *(Mutant(name, "outside", text, kernel) for name, text, kernel in _OUTSIDE),
)
