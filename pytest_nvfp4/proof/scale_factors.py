"""Scale factors in global memory: CuTe's layout equals cuBLAS's 128x4 formula for all m and k.

cuBLAS ("1D Block Scaling Factors Layout"): the factor of row r and k-block j is at byte

    ((r // 128) * R + j // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + j % 4,      R = ceil(blocks / 4)

CuTe: ``tile_atom_to_shape_SF`` tiles the atom ``((32,4),(V,4)):((16,4),(0,1))`` over m and k, the tiles of k faster:
``(((32,4),?),((V,4),?)):(((16,4),512 R),((0,1),512))``, V = 16 or 32 elements of k to a factor, stride 0 among them.
`pytest_nvfp4.proof.scale_on_chip` has the claims on shared memory and TMEM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pytest_nvfp4.layout.grammar import parse_plain_layout
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Term, between, claim_by_z3, facts
from pytest_nvfp4.proof.statement import CaseResult, Claim, Mistake, claim_by_cases, first_failure
from pytest_nvfp4.proof.symbolic import evaluate

VECTORS = (16, 32)
"""Elements of k that share a factor: NVFP4 and MXFP4."""

FORMULA = "((r // 128) R + j // 4) 512 + (r % 32) 16 + (r % 128) // 32 * 4 + j % 4"


def explicit(vector: int) -> str:
    """Return the layout of `tile_atom_to_shape_SF` without the batch; its ``?`` are ceil(m / 128), R and 512 R."""
    return f"(((32,4),?),(({vector},4),?)):(((16,4),?),((0,1),512))"


def claims() -> tuple[Claim, ...]:
    """Return the claims on global memory."""
    return (*(_equal(vector) for vector in VECTORS), _bijective(), *(_broadcast(vector) for vector in VECTORS), _tile())


# --- the same function --------------------------------------------------------------------------------------------


def cublas_digits(z3: Z3, row: Term, block: Term, *, suffix: str = "") -> tuple[dict[str, Formula], Sequence[Term]]:
    """Return the defining facts and (r // 128, r % 128 // 32, r % 32, j // 4, j % 4) of the formula."""
    names = [f"{name}{suffix}" for name in ("r//128", "r%128//32", "r%32", "j//4", "j%4")]
    tile, quarter, line, ktile, inner = z3.Ints(" ".join(names))
    defined = {
        f"r = 128 (r//128) + 32 (r%128//32) + r%32{suffix}": row == 128 * tile + 32 * quarter + line,
        f"0 <= r%32 < 32{suffix}": z3.And(line >= 0, line < 32),
        f"0 <= r%128//32 < 4{suffix}": z3.And(quarter >= 0, quarter < 4),
        f"j = 4 (j//4) + j%4{suffix}": block == 4 * ktile + inner,
        f"0 <= j%4 < 4{suffix}": z3.And(inner >= 0, inner < 4),
    }
    return defined, (tile, quarter, line, ktile, inner)


def cublas(digits: Sequence[Term], rest_k: Term) -> Term:
    """Evaluate the formula on its digits."""
    tile, quarter, line, ktile, inner = digits
    return in_tile(tile * rest_k + ktile, (quarter, line, inner))


def in_tile(tile: Term, digits: Sequence[Term]) -> Term:
    """Return the byte of ``(r % 128 // 32, r % 32, j % 4)`` in a tile given by its number."""
    quarter, line, inner = digits
    return tile * 512 + line * 16 + quarter * 4 + inner


def equal_obligations(z3: Z3, vector: int, text: str | None = None, *, tile_stride: int = 512) -> list[Obligation]:
    """The layout (``text``, or the explicit one) equals the formula; ``tile_stride`` R is its second ``?`` stride."""
    row, k, block, element, rest_m, rest_k = z3.Ints("r k j e rest_m R")
    layout = parse_plain_layout(text or explicit(vector))
    found = evaluate(z3, layout, (row, k), unknowns=(rest_m, rest_k, tile_stride * rest_k))
    defined, digits = cublas_digits(z3, row, block)
    defined |= facts(k == vector * block + element, *between(0, element, vector))
    shown = {"r": row, "k": k, "R": rest_k}
    tile, quarter, line, ktile, inner = digits
    pairs = [(found.digits[0], (line, quarter, tile)), (found.digits[1], (element, inner, ktile))]
    same = [cute == ours for cute_mode, our_mode in pairs for cute, ours in zip(cute_mode, our_mode, strict=True)]
    value, expected = found.value, cublas(digits, rest_k)
    ranges = {words: formula for words, formula in defined.items() if "<" in words}
    ranges |= facts(tile >= 0, *between(0, ktile, rest_k))
    place = {"r": 128 * tile + 32 * quarter + line, "j": 4 * ktile + inner, "R": rest_k}
    return [
        Obligation("CuTe's digits of r and k are the formula's", defined | found.facts, z3.And(*same), shown),
        Obligation(
            "the offsets are the same",
            ranges | facts(*same),
            value == expected,
            place | {"CuTe": value, "cuBLAS": expected},
        ),
    ]


LINEAR = "(((32,4),?),((16,4),?)):(((4,128),?),((0,1),512))"
"""A wrong layout: the rows of a tile one after another, 4 factors each, as in row-major scale factors."""


def _equal(vector: int) -> Claim:
    row_major = LINEAR.replace("16,4),?))", f"{vector},4),?))")
    return claim_by_z3(
        f"scale-factors.cublas-{vector}",
        f"For all m, k and every (r, k): CuTe's scale-factor layout with {vector} elements to a factor is cuBLAS's "
        "128x4 layout.",
        partial(equal_obligations, vector=vector),
        formulas=(f"{explicit(vector)} at (r, k), ? = rest_m, R, 512 R", f"= {FORMULA},  j = k // {vector}"),
        given=("r, k >= 0", "R = ceil(k / (4 V)), V elements to a factor"),
        controls=(
            Mistake("rows of a tile one after another, as in plain factors", {"text": row_major}),
            Mistake("tiles of rows 256 R apart", {"tile_stride": 256}),
        ),
    )


# --- one place a factor, one factor a place -----------------------------------------------------------------------


def bijective_obligations(z3: Z3, *, rest_k_short: bool = False, rest_m_short: bool = False) -> list[Obligation]:
    """Return the map is injective, and onto [0, 512 rest_m R).

    Wrong with ``rest_k_short`` (j may exceed the R tiles of k) or ``rest_m_short`` (r may exceed the rest_m of rows).
    """
    row, block, other_row, other_block, rest_m, rest_k = z3.Ints("r j r' j' rest_m R")
    defined, left = cublas_digits(z3, row, block)
    more, right = cublas_digits(z3, other_row, other_block, suffix="'")
    limit = rest_k + 1 if rest_k_short else rest_k
    last_tile = rest_m + 1 if rest_m_short else rest_m
    in_row = {"j//4 < R": z3.And(*between(0, left[3], limit))}
    bounds = in_row | {"j'//4 < R": z3.And(*between(0, right[3], limit))} | facts(left[0] >= 0, right[0] >= 0)
    tile, other_tile, inside = z3.Ints("tile tile' inside")
    places = [(digits[1], digits[2], digits[4]) for digits in (left, right)]
    same = {"the same byte": in_tile(tile, places[0]) == in_tile(other_tile, places[1])}
    shown = {"r": row, "j": block, "r'": other_row, "j'": other_block, "R": rest_k}
    ranges = {words: formula for words, formula in (defined | more).items() if "<" in words}
    line, quarter, inner = z3.Ints("line quarter inner")
    tile_row, tile_k = z3.Ints("tile_row tile_k")
    return [
        Obligation(
            "the same byte is the same tile and the same place in it",
            ranges | same,
            z3.And(tile == other_tile, *(a == b for a, b in zip(*places, strict=True))),
            shown,
        ),
        Obligation(
            "the same tile is the same rows and k-blocks",
            bounds | {"tile = r//128 R + j//4": left[0] * rest_k + left[3] == right[0] * rest_k + right[3]},
            z3.And(left[0] == right[0], left[3] == right[3]),
            {"R": rest_k, "r//128": left[0], "j//4": left[3], "r'//128": right[0], "j'//4": right[3]},
        ),
        Obligation(
            "every byte of a tile is a factor's",
            facts(*between(0, inside, 512), inside == 16 * line + 4 * quarter + inner)
            | facts(*between(0, inner, 4), *between(0, quarter, 4)),
            z3.And(*between(0, line, 32)),
            {"inside": inside},
        ),
        Obligation(
            "every tile is one of rows and k-blocks",
            facts(*between(0, tile, rest_m * rest_k), rest_m >= 0)
            | facts(tile == tile_row * rest_k + tile_k, *between(0, tile_k, rest_k)),
            z3.And(*between(0, tile_row, rest_m)),
            {"tile": tile, "rest_m": rest_m, "R": rest_k},
        ),
        Obligation(
            "no factor lies past the end",
            defined | in_row | {"0 <= r//128 < rest_m": z3.And(*between(0, left[0], last_tile))},
            z3.And(*between(0, cublas(left, rest_k), 512 * rest_m * rest_k)),
            shown | {"rest_m": rest_m},
        ),
    ]


def _bijective() -> Claim:
    return claim_by_z3(
        "scale-factors.bijective",
        "Every byte of the ceil(m / 128) x R tiles of 512 bytes holds exactly one factor (r, j) with r < 128 ceil(m / "
        "128) and j < 4 R: those with r >= m or j >= k / V are padding, all others the tensor's.",
        bijective_obligations,
        formulas=("(r, j) -> byte is a bijection of [0, 128 rest_m) x [0, 4 R) and [0, 512 rest_m R)",),
        given=("R >= ceil(blocks / 4): the tiles are stored whole",),
        controls=(
            Mistake(
                "R one too small for the blocks of a row",
                {"rest_k_short": True},
                "k = 320 with R = 4 instead of 5: (r, j) = (0, 16) and (128, 0) share byte 2048",
            ),
            Mistake(
                "the rows are not padded: rest_m = m // 128, rounded down",
                {"rest_m_short": True},
                "m = 129 with rest_m = 1 instead of 2, R = 4: (r, j) = (128, 0) is at byte 2048 of 2048",
            ),
        ),
    )


# --- broadcast ----------------------------------------------------------------------------------------------------


def broadcast_obligations(z3: Z3, vector: int, *, claimed: int | None = None) -> list[Obligation]:
    """Return two k of one row share a byte exactly if they are in one run of ``claimed`` (default V) elements."""
    k, other, rest_m, rest_k, row = z3.Ints("k k' rest_m R r")
    claimed = claimed or vector
    layout = parse_plain_layout(explicit(vector))
    one = evaluate(z3, layout, (row, k), unknowns=(rest_m, rest_k, 512 * rest_k), prefix="d")
    two = evaluate(z3, layout, (row, other), unknowns=(rest_m, rest_k, 512 * rest_k), prefix="e")
    block, rest, other_block, other_rest = z3.Ints("j e j' e'")
    runs = facts(k == claimed * block + rest, *between(0, rest, claimed))
    runs |= facts(other == claimed * other_block + other_rest, *between(0, other_rest, claimed))
    # In one row, the digits of the row cancel: the offsets differ by what the digits of k contribute.
    strides = (16, 4, 512 * rest_k)
    rows = sum((a - b) * stride for a, b, stride in zip(one.digits[0], two.digits[0], strides, strict=True))
    difference = one.value - two.value - rows
    return [
        Obligation(
            f"the same byte exactly for the same k // {claimed}",
            runs | dict(one.by_mode[1]) | dict(two.by_mode[1]),
            (z3.simplify(difference) == 0) == (block == other_block),
            {"k": k, "k'": other},
        )
    ]


def _broadcast(vector: int) -> Claim:
    wrong = 48 - vector  # 16 for 32, and 32 for 16
    return claim_by_z3(
        f"scale-factors.broadcast-{vector}",
        f"A factor is shared by exactly {vector} elements of k: k and k' of a row have the same byte if and only if "
        f"k // {vector} = k' // {vector}.",
        partial(broadcast_obligations, vector=vector),
        formulas=(f"offset(r, k) = offset(r, k')  <=>  k // {vector} = k' // {vector}",),
        given=("0 <= k, k'",),
        controls=(Mistake(f"shared by {wrong} elements", {"claimed": wrong}),),
    )


# --- without a solver ---------------------------------------------------------------------------------------------


def formula(row: int, block: int, *, rest_k: int) -> int:
    """Evaluate cuBLAS's formula on numbers."""
    return (row // 128 * rest_k + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


def compare_tile(text: str, *, vector: int, rest_m: int = 2, rest_k: int = 3) -> CaseResult:
    """Return the first (r, k) of ``rest_m x rest_k`` tiles at which a static layout differs from the formula."""
    layout = parse_plain_layout(text)
    rows, columns = 128 * rest_m, 4 * vector * rest_k
    expected = [formula(row, k // vector, rest_k=rest_k) for k in range(columns) for row in range(rows)]
    offsets = values(layout)
    if len(offsets) != len(expected):
        size = f"{rows} rows by {columns} elements of k are {len(expected)}"
        return CaseResult(f"{text} has {len(offsets)} places, and {size}", len(offsets))
    for at, (offset, cublas_offset) in enumerate(zip(offsets, expected, strict=True)):
        if offset != cublas_offset:
            wrong = f"(r, k) = ({at % rows}, {at // rows}) is at {offset}, and cuBLAS places it at {cublas_offset}"
            return CaseResult(wrong, at + 1)
    return CaseResult(None, len(expected))


def static(vector: int, *, rest_m: int = 2, rest_k: int = 3) -> str:
    """Return the explicit layout with numbers for its ``?``."""
    return f"(((32,4),{rest_m}),(({vector},4),{rest_k})):(((16,4),{512 * rest_k}),((0,1),512))"


def _tile() -> Claim:
    right = {vector: static(vector, rest_m=1, rest_k=2) for vector in VECTORS}

    def look(*, texts: Mapping[int, str] = right) -> CaseResult:
        return first_failure(compare_tile(text, vector=vector, rest_m=1, rest_k=2) for vector, text in texts.items())

    return claim_by_cases(
        "scale-factors.two-tiles",
        "On 128 rows and two tiles of k, every (r, k) of the layout is where cuBLAS's formula places it.",
        look,
        "places",
        formulas=(f"{right[16]} = {FORMULA}",),
        controls=(
            Mistake(
                "rows of a tile one after another, as in plain factors",
                {"texts": {16: "(((32,4),1),((16,4),2)):(((4,128),1024),((0,1),512))"}},
            ),
        ),
    )
