"""Diagnosis of a wrong output: hypotheses about the fault, each computed and compared bit for bit.

Two kinds are tried. *Named faults* are the wrong kernels of :mod:`~pytest_nvfp4.numerics.mutants`, run on the same
inputs. *Moves* are searched: for each wrong row, the row of C, of A, or of A's scale factors whose use in its place
gives the bits of the output (columns and B likewise), and the k-tile whose products are missing or counted twice. A
hypothesis is reported only if it explains the wrong outputs and keeps the right ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics import fp16, kernel_model
from pytest_nvfp4.numerics.arrays import Float64, HalfBits, Mask
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.mutants import MUTANTS

__all__ = ["Explanation", "explain"]

ENOUGH = 0.98
"""Share of the compared outputs that a hypothesis must reproduce exactly."""
_SAMPLE = 24
"""Rows or columns that a search samples."""
_BLOCK = 16
_BUDGET_S = 4.0
_PRODUCTS = 40_000_000
"""Largest group, in products, for which named faults are run: each is a whole matrix product."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A confirmed hypothesis: ``share`` of the group's outputs match it bit for bit."""

    text: str
    share: float

    def __str__(self) -> str:
        return f"equals the result with {self.text} ({100 * self.share:.4g} % of the outputs, bit for bit)"


def explain(
    problem: ProblemInput, index: int, got: HalfBits, wrong: Mask, *, budget_s: float = _BUDGET_S
) -> list[Explanation]:
    """Return the hypotheses about group ``index`` that hold, best first; empty if none does or nothing was written.

    Args:
        problem: The inputs.
        index: The group.
        got: ``[m, n]`` the bits that the kernel left in C.
        wrong: ``[m, n]`` where they are not right.
        budget_s: Seconds of this thread's own work after which no further hypothesis is tried; what else the machine
            does changes nothing in what is found.
    """
    if not wrong.any() or (got == problem.groups[index].guard.poison).all():  # an unwritten output fits no fault
        return []
    deadline = time.thread_time() + budget_s
    found: list[Explanation] = []
    group = _Group(problem, index, got, wrong)
    for search in (_rows_of_c, _columns_of_c, _scale_rows, _scale_columns, _k_tiles):
        if time.thread_time() > deadline:
            break
        found.extend(search(group))
    sizes = problem.groups[index].group
    if sizes.m * sizes.n * sizes.k <= _PRODUCTS:
        found.extend(_named(group, deadline))
    return sorted(found, key=lambda each: -each.share)


class _Group:
    """A group's decoded operands, its output, and which outputs are wrong."""

    def __init__(self, problem: ProblemInput, index: int, got: HalfBits, wrong: Mask) -> None:
        self.problem, self.index, self.got, self.wrong = problem, index, got, wrong
        inputs = problem.groups[index]
        self.a = kernel_model.elements(inputs.a)
        self.b = kernel_model.elements(inputs.b)
        self.sfa = kernel_model.scales(problem, index, "a")
        self.sfb = kernel_model.scales(problem, index, "b")
        self.m, self.n = got.shape

    def row_products(self, row: int) -> Float64:
        """Return ``[n, blocks]``: products of a row of A with all of B, summed by block, with B's scales only."""
        a = self.a[row].reshape(-1, _BLOCK)
        b = self.b.reshape(self.n, -1, _BLOCK)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.einsum("ke,nke->nk", a, b) * self.sfb)

    def column_products(self, column: int) -> Float64:
        """Return ``[m, blocks]``: products of a row of B with all of A, summed by block, with A's scales only."""
        b = self.b[column].reshape(-1, _BLOCK)
        a = self.a.reshape(self.m, -1, _BLOCK)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.einsum("ke,mke->mk", b, a) * self.sfa)


def _bits(values: Float64) -> HalfBits:
    with np.errstate(over="ignore", invalid="ignore"):
        bits = fp16.round_nearest(values.astype(np.float32)).view(np.uint16).copy()
    bits[np.isnan(values)] = fp16.CANONICAL_NAN
    return bits


def _same(one: HalfBits, other: HalfBits) -> NDArray[np.bool_]:
    zero = np.uint16(0x7FFF)
    both_nan = ((one & zero) > 0x7C00) & ((other & zero) > 0x7C00)
    return np.asarray((one == other) | both_nan | (((one | other) & zero) == 0))


def _sample(indices: NDArray[np.intp]) -> NDArray[np.intp]:
    if indices.size <= _SAMPLE:
        return indices
    chosen: NDArray[np.intp] = indices[np.unique(np.linspace(0, indices.size - 1, _SAMPLE).astype(np.intp))]
    return chosen


def _full(group: _Group) -> HalfBits:
    return _bits(_product(group, group.sfa, group.sfb))


def _product(group: _Group, sfa: Float64, sfb: Float64) -> Float64:
    with np.errstate(invalid="ignore"):
        a = (group.a.reshape(group.m, -1, _BLOCK) * sfa[:, :, None]).reshape(group.m, -1)
        b = (group.b.reshape(group.n, -1, _BLOCK) * sfb[:, :, None]).reshape(group.n, -1)
        return np.asarray(a @ b.T)


def _matches(
    rows: NDArray[np.intp], candidates: Callable[[int], HalfBits], got: Callable[[int], HalfBits]
) -> dict[int, int]:
    """Return for each row its only candidate that gives the output, where there is exactly one."""
    found: dict[int, int] = {}
    for row in rows.tolist():
        table = candidates(row)
        share = _same(table, got(row)[None, :]).mean(axis=1)
        best = int(share.argmax())
        if share[best] >= ENOUGH and (share >= ENOUGH).sum() == 1 and best != row:
            found[row] = best
    return found


def _rows_of_c(group: _Group) -> Iterator[Explanation]:
    rows = _sample(np.flatnonzero(group.wrong.any(axis=1)))
    want = _full(group)
    moved = _matches(rows, lambda _: want, lambda row: group.got[row])
    if len(moved) >= ENOUGH * len(rows) and moved:
        yield from _told(group, moved, "rows of C", want, axis=0)


def _columns_of_c(group: _Group) -> Iterator[Explanation]:
    columns = _sample(np.flatnonzero(group.wrong.any(axis=0)))
    want = _full(group).T
    moved = _matches(columns, lambda _: want, lambda column: group.got[:, column])
    if len(moved) >= ENOUGH * len(columns) and moved:
        yield from _told(group, moved, "columns of C", want, axis=1)


def _told(group: _Group, moved: dict[int, int], what: str, want: HalfBits, *, axis: int) -> Iterator[Explanation]:
    size = group.m if axis == 0 else group.n
    mapping = _extended(moved, size)
    if mapping is None:
        return
    words, function = mapping
    got = group.got if axis == 0 else group.got.T
    wrong = np.atleast_1d(group.wrong.any(axis=1 - axis))
    source = np.array([function(i) if wrong[i] else i for i in range(size)])
    if (source < 0).any() or (source >= size).any():
        return
    share = float(_same(want[source], got).mean())
    if share >= ENOUGH:
        yield Explanation(f"{what} {words}", share)


def _scale_rows(group: _Group) -> Iterator[Explanation]:
    rows = _sample(np.flatnonzero(group.wrong.any(axis=1)))

    def candidates(row: int) -> HalfBits:
        with np.errstate(invalid="ignore"):
            return _bits(group.sfa @ group.row_products(row).T)

    moved = _matches(rows, candidates, lambda row: group.got[row])
    if moved and len(moved) >= ENOUGH * len(rows) and (mapping := _extended(moved, group.m)) is not None:
        words, function = mapping
        wrong = np.atleast_1d(group.wrong.any(axis=1))
        source = [function(i) if wrong[i] else i for i in range(group.m)]
        if all(0 <= i < group.m for i in source):
            share = float(_same(_bits(_product(group, group.sfa[source], group.sfb)), group.got).mean())
            if share >= ENOUGH:
                yield Explanation(f"SFA rows {words}", share)


def _scale_columns(group: _Group) -> Iterator[Explanation]:
    columns = _sample(np.flatnonzero(group.wrong.any(axis=0)))

    def candidates(column: int) -> HalfBits:
        with np.errstate(invalid="ignore"):
            return _bits(group.sfb @ group.column_products(column).T)

    moved = _matches(columns, candidates, lambda column: group.got[:, column])
    if moved and len(moved) >= ENOUGH * len(columns) and (mapping := _extended(moved, group.n)) is not None:
        words, function = mapping
        wrong = np.atleast_1d(group.wrong.any(axis=0))
        source = [function(i) if wrong[i] else i for i in range(group.n)]
        if all(0 <= i < group.n for i in source):
            share = float(_same(_bits(_product(group, group.sfa, group.sfb[source])), group.got).mean())
            if share >= ENOUGH:
                yield Explanation(f"SFB rows {words}", share)


_BANDS = (0, 2, 1, 3)
_MOVES: tuple[tuple[str, Callable[[int], int]], ...] = (
    ("32-63 and 64-95 of each 128 exchanged", lambda i: i // 128 * 128 + _BANDS[i % 128 // 32] * 32 + i % 32),
    ("0-31 and 32-63 of each 128 exchanged", lambda i: i // 128 * 128 + (i % 128 ^ 32 if i % 128 < 64 else i % 128)),
    ("0-63 and 64-127 of each 128 exchanged", lambda i: i ^ 64),
    ("of each 128 in the order of a transposed 32x4 tile", lambda i: i // 128 * 128 + i % 4 * 32 + i % 128 // 4),
    ("of each 128 in the order of a transposed 4x32 tile", lambda i: i // 128 * 128 + i % 32 * 4 + i % 128 // 32),
    ("0-31 of each 128 used for all of it", lambda i: i // 128 * 128 + i % 32),
    ("0-127 used for every tile of 128", lambda i: i % 128),
    ("of each 128 in reverse order", lambda i: i // 128 * 128 + 127 - i % 128),
    ("of each pair exchanged", lambda i: i ^ 1),
)  # fmt: skip


def _extended(moved: dict[int, int], size: int) -> tuple[str, Callable[[int], int]] | None:
    """Return a rule, in words and as a function, that gives every observed move; None if no rule does."""
    for words, function in _MOVES:
        if all(function(row) == source for row, source in moved.items()):
            return words, function
    shifts = {source - row for row, source in moved.items()}
    if len(shifts) == 1:
        shift = shifts.pop()
        return f"{abs(shift)} {'later' if shift > 0 else 'earlier'}", lambda i: i + shift
    sources = set(moved.values())
    if len(sources) == 1:
        one = sources.pop()
        return f"{one} in place of every wrong one", lambda _: one
    around = {(source - row) % size for row, source in moved.items()}
    if len(around) == 1:
        turn = around.pop()
        return f"{turn} later, wrapping around", lambda i: (i + turn) % size
    return None


def _k_tiles(group: _Group) -> Iterator[Explanation]:
    blocks = group.sfa.shape[1]
    rows = _sample(np.flatnonzero(group.wrong.any(axis=1)))
    if not rows.size:
        return
    with np.errstate(invalid="ignore"):
        by_block = np.stack([group.row_products(int(row)) * group.sfa[int(row)] for row in rows])
    whole = by_block.sum(axis=2)
    got, wrong = group.got[rows], group.wrong[rows]
    for tile in (16, 4, 1):
        if blocks % tile or blocks // tile < 2:
            continue
        tiles = by_block.reshape(*by_block.shape[:2], -1, tile).sum(axis=3)
        for number in range(tiles.shape[2]):
            for words, total in (
                ("left out", whole - tiles[:, :, number]),
                ("counted twice", whole + tiles[:, :, number]),
                ("alone", tiles[:, :, number]),
            ):
                same = _same(_bits(total), got)
                if same[wrong].all() and wrong.sum() >= 8:
                    first = number * tile * _BLOCK
                    yield Explanation(
                        f"the products of k {first} to {first + tile * _BLOCK - 1} {words}, where it is wrong",
                        float(same[wrong].mean()),
                    )
                    return


def _named(group: _Group, deadline: float) -> Iterator[Explanation]:
    inputs = group.problem.groups[group.index]
    for mutant in MUTANTS.values():
        if time.thread_time() > deadline:
            return
        try:
            made = inputs.split_c(mutant.kernel(group.problem, group.index))[1]
        except (IndexError, ValueError):
            continue  # a fault that these sizes do not allow
        same = _same(made, group.got)
        if same.mean() >= ENOUGH and same[group.wrong].mean() >= ENOUGH:
            yield Explanation(mutant.description, float(same.mean()))
