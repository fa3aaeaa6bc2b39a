"""Diagnosis of a wrong output: hypotheses about the fault, each computed and compared bit for bit.

Two kinds are tried. *Named faults* are the wrong kernels of :mod:`~pytest_nvfp4.numerics.mutants`, run on the same
inputs. *Moves* are searched: for each wrong row, the row of C, of A, or of A's scale factors whose use in its place
gives the bits of the output (columns and B likewise), and the k-tile whose products are missing or counted twice. A
hypothesis is reported only if it explains the wrong outputs and keeps the right ones, and if its outputs differ from
those of a kernel that did nothing: zeros are no evidence, nor is poison everywhere (with k = 256, "the last 256 of k
left out" predicts zeros, and so does everything else that accumulates nothing).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics import fp16, kernel_model
from pytest_nvfp4.numerics.arrays import Float64, HalfBits, Mask
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.mutants import MUTANTS

ENOUGH = 0.98
"""Share of the compared outputs that a hypothesis must reproduce exactly."""
_SAMPLE = 24
"""Rows or columns that a search samples."""
_FEWEST = 8
"""Columns that a search is restricted to: of fewer, rows may agree by chance."""
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


def zeros(got: HalfBits, wrong: Mask) -> str:
    """Return what wrong outputs that are all zero show; empty if one is not zero, or none is wrong."""
    if not wrong.any() or (got[wrong] & np.uint16(0x7FFF)).any():
        return ""
    return "is zero: nothing was accumulated there, or every operand that the MMAs read was zero"


def explain(
    problem: ProblemInput, index: int, got: HalfBits, wrong: Mask, *, budget_s: float = _BUDGET_S
) -> list[Explanation]:
    """Return the hypotheses about group ``index`` that hold, best first.

    There are none if every wrong output is zero, or nothing was written, because any fault may predict that.

    Args:
        problem: The inputs.
        index: The group.
        got: ``[m, n]`` the bits that the kernel left in C.
        wrong: ``[m, n]`` where they are not right.
        budget_s: Seconds of this thread's own work after which no further hypothesis is tried; what else the machine
            does changes nothing in what is found.
    """
    evidence = wrong & ((got & np.uint16(0x7FFF)) != 0)
    if not evidence.any() or (got == problem.groups[index].guard.poison).all():
        return []
    deadline = time.thread_time() + budget_s
    group = _Group.of(problem, index, got, wrong, evidence)
    across = group.transposed()
    found: list[Explanation] = []
    for search, operands, what in (
        (_rows_of_c, group, "rows of C"),
        (_rows_of_c, across, "columns of C"),
        (_scale_rows, group, "SFA rows"),
        (_scale_rows, across, "SFB rows"),
        (_k_tiles, group, "the products of k"),
    ):
        if time.thread_time() > deadline:
            break
        found.extend(search(operands, what))
    sizes = problem.groups[index].group
    if sizes.m * sizes.n * sizes.k <= _PRODUCTS:
        found.extend(_named(problem, index, group, deadline))
    return sorted(found, key=lambda each: -each.share)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """A group's decoded operands, its output ``got``, which outputs are wrong, and which of those are not zero."""

    a: Float64
    b: Float64
    sfa: Float64
    sfb: Float64
    got: HalfBits
    wrong: Mask
    evidence: Mask

    @classmethod
    def of(cls, problem: ProblemInput, index: int, got: HalfBits, wrong: Mask, evidence: Mask) -> _Group:
        """Decode the operands of a group."""
        inputs = problem.groups[index]
        return cls(
            a=kernel_model.elements(inputs.a),
            b=kernel_model.elements(inputs.b),
            sfa=kernel_model.scales(problem, index, "a"),
            sfb=kernel_model.scales(problem, index, "b"),
            got=got,
            wrong=wrong,
            evidence=evidence,
        )

    def transposed(self) -> _Group:
        """Return the group of C transposed: A and B exchange roles, so a search over rows covers columns."""
        return _Group(self.b, self.a, self.sfb, self.sfa, self.got.T, self.wrong.T, self.evidence.T)

    def of_columns(self, columns: NDArray[np.intp]) -> _Group:
        """Return the group with some columns of C alone."""
        return replace(
            self,
            b=self.b[columns],
            sfb=self.sfb[columns],
            got=self.got[:, columns],
            wrong=self.wrong[:, columns],
            evidence=self.evidence[:, columns],
        )

    @property
    def m(self) -> int:
        """Rows of the output."""
        return len(self.got)

    def explained(self, same: Mask) -> bool:
        """Return whether a hypothesis also gives the wrong outputs that are not zero."""
        return bool(same[self.evidence].mean() >= ENOUGH)

    def wrong_rows(self) -> NDArray[np.intp]:
        """Return a sample of the rows that have a wrong output."""
        return _sample(np.flatnonzero(self.wrong.any(axis=1)))

    def row_products(self, row: int) -> Float64:
        """Return ``[n, blocks]``: products of a row of A with all of B, summed by block, with B's scales only."""
        a = self.a[row].reshape(-1, _BLOCK)
        b = self.b.reshape(len(self.b), -1, _BLOCK)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.einsum("ke,nke->nk", a, b) * self.sfb)

    def product(self, sfa: Float64) -> HalfBits:
        """Return the output with these scale factors of A."""
        with np.errstate(invalid="ignore"):
            a = (self.a.reshape(self.m, -1, _BLOCK) * sfa[:, :, None]).reshape(self.m, -1)
            b = (self.b.reshape(len(self.b), -1, _BLOCK) * self.sfb[:, :, None]).reshape(len(self.b), -1)
            return _bits(np.asarray(a @ b.T))


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


def _moved(
    group: _Group,
    what: str,
    candidates: Callable[[int], HalfBits],
    output: Callable[[NDArray[np.intp]], HalfBits],
    where: str = "",
) -> Iterator[Explanation]:
    """Search a move of rows: each wrong row equals one candidate, and ``output`` of the moved rows is the output."""
    rows = group.wrong_rows()
    moved = _matches(rows, candidates, lambda row: group.got[row])
    if not moved or len(moved) < ENOUGH * len(rows) or (mapping := _extended(moved, group.m)) is None:
        return
    words, function = mapping
    wrong = np.atleast_1d(group.wrong.any(axis=1))
    source = np.array([function(i) if wrong[i] else i for i in range(group.m)])
    if (source < 0).any() or (source >= group.m).any():
        return
    same = _same(output(source), group.got)
    share = float(same.mean())
    if share >= ENOUGH and group.explained(same):
        yield Explanation(f"{what} {words}{where}", share)


def _rows_of_c(group: _Group, what: str) -> Iterator[Explanation]:
    """Search a move of rows of C, in the columns alone that have wrong outputs: one of several stores may do it."""
    wrong = np.flatnonzero(group.wrong.any(axis=0))
    part, where = group, ""
    if _FEWEST <= wrong.size < group.got.shape[1]:
        part = group.of_columns(wrong)
        some = f" ({wrong.size} of them)" if wrong[-1] - wrong[0] >= wrong.size else ""
        where = f", in {'columns' if what.startswith('rows') else 'rows'} {wrong[0]}-{wrong[-1]}{some}"
    want = part.product(part.sfa)
    return _moved(part, what, lambda _: want, lambda source: want[source], where)


def _scale_rows(group: _Group, what: str) -> Iterator[Explanation]:
    def candidates(row: int) -> HalfBits:
        with np.errstate(invalid="ignore"):
            return _bits(group.sfa @ group.row_products(row).T)

    return _moved(group, what, candidates, lambda source: group.product(group.sfa[source]))


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


def _k_tiles(group: _Group, what: str) -> Iterator[Explanation]:
    blocks = group.sfa.shape[1]
    rows = group.wrong_rows()
    if not rows.size:
        return
    with np.errstate(invalid="ignore"):
        by_block = np.stack([group.row_products(int(row)) * group.sfa[int(row)] for row in rows])
    whole = by_block.sum(axis=2)
    got, wrong, evidence = group.got[rows], group.wrong[rows], group.evidence[rows]
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
                if same[wrong].all() and evidence.sum() >= 8:
                    first = number * tile * _BLOCK
                    yield Explanation(
                        f"{what} {first} to {first + tile * _BLOCK - 1} {words}, where it is wrong",
                        float(same[wrong].mean()),
                    )
                    return


def _named(problem: ProblemInput, index: int, group: _Group, deadline: float) -> Iterator[Explanation]:
    inputs = problem.groups[index]
    for mutant in MUTANTS.values():
        if time.thread_time() > deadline:
            return
        try:
            made = inputs.split_c(mutant.kernel(problem, index))[1]
        except (IndexError, ValueError):
            continue  # a fault that these sizes do not allow
        same = _same(made, group.got)
        if same.mean() >= ENOUGH and same[group.wrong].mean() >= ENOUGH and group.explained(same):
            yield Explanation(mutant.description, float(same.mean()))
