"""Claims on the addresses of a kernel, over what the MMAs of a simulated call read.

They hold for the tiles of that call. For a row r of C and a column c, C[r, c] is the sum over k of A[r, k] B[c, k],
each with the scale factors of its own row and k. So row by row A and SFA must read one row and k of a matrix and of its
scale factors, B and SFB too, and A and B one k of the two matrices of a group. Nothing depends on names in the kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_nvfp4.proof.operand_record import MmaRead, OperandRead, OperandRecord
from pytest_nvfp4.proof.statement import CaseResult, Claim, Mistake, claim_by_cases, first_failure

_STEP = 64
"""Elements of k of one MMA of 4-bit operands (PTX ISA, "Matrix Shape")."""


def address_claims(
    record: OperandRecord, *, depths: Mapping[int, int], errors: Sequence[str], topic: str
) -> tuple[Claim, ...]:
    """Return the claims.

    Args:
        record: What the MMAs read.
        depths: K of each group.
        errors: What the simulator found wrong in the call.
        topic: First part of the claims' names.
    """

    def operands(*, mistake: str = "") -> CaseResult:
        return first_failure(_operands(_mistaken(record, mistake), mma) for mma in _mistaken(record, mistake).mmas)

    def columns(*, shift: int | None = None) -> CaseResult:
        return first_failure(_columns(mma, shift) for mma in record.mmas)

    def depth(*, last: bool = True) -> CaseResult:
        return _depth(record if last else record.model_copy(update={"mmas": record.mmas[:-1]}), depths)

    def run(*, also: tuple[str, ...] = ()) -> CaseResult:
        found = [*errors, *also]
        return CaseResult(found[0] if found else None, len(record.mmas))

    return (
        claim_by_cases(
            f"{topic}.operands",
            "Row by row, SFA is of the same row and k as A, and SFB as B; A and B are of the same k of one group.",
            operands,
            "MMAs",
            formulas=("place(SFA[r]) = scales(place(A[r])), place(SFB[c]) = scales(place(B[c])), k(A) = k(B)",),
            controls=(
                Mistake("SFA and SFB exchanged", {"mistake": "exchanged"}),
                Mistake("every MMA reads the SFA of the first", {"mistake": "fixed"}),
                Mistake("B of the next MMA", {"mistake": "shifted"}),
            ),
        ),
        claim_by_cases(
            f"{topic}.columns",
            "The TMEM columns of accumulator, SFA and SFB of every MMA are disjoint.",
            columns,
            "MMAs",
            formulas=("columns(D), columns(SFA), columns(SFB) pairwise disjoint",),
            controls=(
                Mistake("SFB begins in SFA", {"shift": 0}),
                Mistake("SFB begins in the accumulator", {"shift": -1}),
            ),
        ),
        claim_by_cases(
            f"{topic}.depth",
            "Every accumulation is of one tile, and the MMAs of a tile multiply each k of all K once.",
            depth,
            "MMAs",
            formulas=("the k of a tile's MMAs = {0, 64, .. K - 64}, each once",),
            controls=(Mistake("the last MMA is left out", {"last": False}),),
        ),
        claim_by_cases(
            f"{topic}.run",
            "The simulated call ends without an error, and each CTA stores the tile of C that its MMAs made.",
            run,
            "MMAs",
            formulas=("findings(call) = {}",),
            controls=(Mistake("an error of the simulator", {"also": ("an error",)}),),
        ),
    )


# --- operands -----------------------------------------------------------------------------------------------------


def _mistaken(record: OperandRecord, mistake: str) -> OperandRecord:
    if not mistake:
        return record
    mmas = list(record.mmas)
    changed = []
    for at, mma in enumerate(mmas):
        reads = dict(mma.operands)
        if mistake == "exchanged":
            reads["SFA"], reads["SFB"] = reads["SFB"], reads["SFA"]
        elif mistake == "fixed":
            reads["SFA"] = mmas[0].operands["SFA"]
        else:
            reads["B"] = mmas[(at + 1) % len(mmas)].operands["B"]
        changed.append(mma.model_copy(update={"operands": reads}))
    return record.model_copy(update={"mmas": tuple(changed)})


def _operands(record: OperandRecord, mma: MmaRead) -> CaseResult:
    for name, scales in (("A", "SFA"), ("B", "SFB")):
        matrix, factors = mma.operands[name], mma.operands[scales]
        places = list(_rows(matrix))
        wanted = [_scales_of(record, place) for place in places]
        got = list(_rows(factors))
        for row, (need, have) in enumerate(zip(wanted, got, strict=False)):
            if _named(record, have) != need:
                return CaseResult(
                    f"the MMA at {mma.place} in CTA {mma.cta}, row {row} of its tile: {scales} reads "
                    f"{_said(record, factors, have)}, and {name} reads {_said(record, matrix, places[row])}",
                    1,
                )
        if len(wanted) != len(got):
            return CaseResult(f"the MMA at {mma.place}: {len(wanted)} rows of {name}, {len(got)} of {scales}", 1)
    a, b = (_inside(record, mma.operands[name]) for name in ("A", "B"))
    for (left, group, k), (right, other_group, other_k) in zip(a, b, strict=False):
        if (group, k) != (other_group, other_k) or left == right:
            return CaseResult(
                f"the MMA at {mma.place} in CTA {mma.cta} multiplies {left} of group {group} at k {k} by {right} of "
                f"group {other_group} at k {other_k}{_came(mma.operands['B'])}",
                1,
            )
    return CaseResult(None, 1)


def _rows(read: OperandRead) -> Iterator[tuple[int, int, int]]:
    """Return the tensor, row and k of each row of the tile."""
    for run in read.runs:
        for offset in range(run.rows):
            yield (run.tensor, run.row + offset, run.k) if run.tensor >= 0 else (run.tensor, 0, 0)


def _named(record: OperandRecord, place: tuple[int, int, int]) -> tuple[str, int, int, int] | int:
    tensor, row, k = place
    return (*record.tensors[tensor], row, k) if tensor >= 0 else tensor


def _scales_of(record: OperandRecord, place: tuple[int, int, int]) -> tuple[str, int, int, int] | int:
    named = _named(record, place)
    return named if isinstance(named, int) else (f"SF{named[0]}", *named[1:])


def _inside(record: OperandRecord, read: OperandRead) -> set[tuple[str, int, int]]:
    """Return name, group and k of the tensors that an operand reads; they are one unless it is torn."""
    return {(*record.tensors[run.tensor], run.k) for run in read.runs if run.tensor >= 0}


def _said(record: OperandRecord, read: OperandRead, place: tuple[int, int, int]) -> str:
    named = _named(record, place)
    if isinstance(named, int):
        return f"nothing of an input{_came(read)}"
    tensor, group, row, k = named
    return f"{tensor} of group {group}, row {row}, k {k}{_came(read)}"


def _came(read: OperandRead) -> str:
    ways = [f"{verb} by {place}" for verb, place in (("loaded", read.load), ("copied", read.copied)) if place]
    return f" ({', '.join(ways)})" if ways else ""


# --- columns ------------------------------------------------------------------------------------------------------


def _columns(mma: MmaRead, shift: int | None) -> CaseResult:
    ranges = {"the accumulator": mma.columns}
    for name in ("SFA", "SFB"):
        columns = mma.operands[name].columns
        if columns is not None:
            ranges[name] = columns
    if shift is not None and "SFA" in ranges and "SFB" in ranges:
        begin = ranges["SFA"][0] if shift == 0 else mma.columns[1] + shift
        ranges["SFB"] = (begin, begin + ranges["SFB"][1] - ranges["SFB"][0])
    placed = sorted((columns, name) for name, columns in ranges.items())
    for (one, name), (two, other) in itertools.pairwise(placed):
        if two[0] < one[1]:
            return CaseResult(
                f"the MMA at {mma.place} in CTA {mma.cta}: {other} in TMEM columns [{two[0]}, {two[1]}) overlaps "
                f"{name} in [{one[0]}, {one[1]})",
                1,
            )
    return CaseResult(None, 1)


# --- depth --------------------------------------------------------------------------------------------------------


def _depth(record: OperandRecord, depths: Mapping[int, int]) -> CaseResult:
    tiles: dict[object, dict[int, str]] = {}
    groups: dict[object, int] = {}
    open_tiles: dict[object, object] = {}
    multiplied: set[object] = set()
    for checked, mma in enumerate(record.mmas, 1):
        reads = [mma.operands[name] for name in ("A", "B")]
        inside = [_inside(record, read) for read in reads]
        if not all(inside):
            continue
        tile = tuple(tuple(run._replace(k=0) for run in read.runs) for read in reads)
        accumulator = mma.launch, mma.cta, mma.columns[0]
        if mma.adds and open_tiles.get(accumulator, tile) != tile:
            return CaseResult(
                f"the MMA at {mma.place} in CTA {mma.cta} adds to the accumulator of another tile", checked
            )
        open_tiles[accumulator] = tile
        ((_, group, k), *_) = inside[0]
        groups[tile] = group
        if (mma.launch, tile, k) in multiplied:
            return CaseResult(
                f"the MMA at {mma.place} in CTA {mma.cta} multiplies k {k} of a tile of group {group} again"
                f"{_came(reads[0])}",
                checked,
            )
        multiplied.add((mma.launch, tile, k))
        tiles.setdefault(tile, {})[k] = mma.place
    for each, seen in tiles.items():
        left = sorted(set(range(0, depths.get(groups[each], 0), _STEP)) - set(seen))
        if left:
            last = seen[max(seen)]
            return CaseResult(
                f"no MMA multiplies k {left[0]} to {left[-1] + _STEP - 1} of a tile of group {groups[each]}; the last "
                f"one, at {last}, is of k {max(seen)}",
                len(record.mmas),
            )
    return CaseResult(None, len(record.mmas))


def with_scope(claims: Sequence[Claim], scope: str) -> tuple[Claim, ...]:
    """Return the claims with the origin of their addresses as scope."""
    return tuple(replace(claim, scope=scope) for claim in claims)
