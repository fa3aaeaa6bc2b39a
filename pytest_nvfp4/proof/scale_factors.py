"""Where scale factors lie in global memory: CuTe's layout is cuBLAS's 128x4 formula, for all m and k.

cuBLAS ("1D Block Scaling Factors Layout"): the factor of row r and k-block j is at byte

    ((r // 128) * R + j // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + j % 4,      R = ceil(blocks / 4)

CuTe: ``tile_atom_to_shape_SF`` tiles the atom ``((32,4),(V,4)):((16,4),(0,1))`` over m and k, the tiles of k faster:
``(((32,4),?),((V,4),?)):(((16,4),512 R),((0,1),512))``, V = 16 or 32 elements of k to a factor, stride 0 among them.
What a traced kernel does with them in shared memory and TMEM is in `pytest_nvfp4.proof.scale_on_chip`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.layout.grammar import parse_plain_layout
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Questions, Term
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Look, Method
from pytest_nvfp4.proof.symbolic import evaluate

VECTORS = (16, 32)
"""Elements of k that share a factor: NVFP4 and MXFP4."""

FORMULA = "((r // 128) R + j // 4) 512 + (r % 32) 16 + (r % 128) // 32 * 4 + j % 4"


def explicit(vector: int) -> str:
    """What `tile_atom_to_shape_SF` builds, without the batch; the ``?`` are ceil(m / 128), R and 512 R."""
    return f"(((32,4),?),(({vector},4),?)):(((16,4),?),((0,1),512))"


def claims() -> tuple[Claim, ...]:
    """The claims on global memory."""
    return (*(_equal(vector) for vector in VECTORS), _bijective(), *(_broadcast(vector) for vector in VECTORS), _tile())


# --- the same function --------------------------------------------------------------------------------------------


def cublas_digits(z3: Z3, row: Term, block: Term, *, suffix: str = "") -> tuple[dict[str, Formula], Sequence[Term]]:
    """(facts, (r // 128, r % 128 // 32, r % 32, j // 4, j % 4)) of the formula."""
    names = [f"{name}{suffix}" for name in ("r//128", "r%128//32", "r%32", "j//4", "j%4")]
    tile, quarter, line, ktile, inner = z3.Ints(" ".join(names))
    facts = {
        f"r = 128 (r//128) + 32 (r%128//32) + r%32{suffix}": row == 128 * tile + 32 * quarter + line,
        f"0 <= r%32 < 32{suffix}": z3.And(line >= 0, line < 32),
        f"0 <= r%128//32 < 4{suffix}": z3.And(quarter >= 0, quarter < 4),
        f"j = 4 (j//4) + j%4{suffix}": block == 4 * ktile + inner,
        f"0 <= j%4 < 4{suffix}": z3.And(inner >= 0, inner < 4),
    }
    return facts, (tile, quarter, line, ktile, inner)


def cublas(digits: Sequence[Term], rest_k: Term) -> Term:
    """The formula on its digits."""
    tile, quarter, line, ktile, inner = digits
    return in_tile(tile * rest_k + ktile, (quarter, line, inner))


def in_tile(tile: Term, digits: Sequence[Term]) -> Term:
    """The byte of ``(r % 128 // 32, r % 32, j % 4)`` in the tile of this number."""
    quarter, line, inner = digits
    return tile * 512 + line * 16 + quarter * 4 + inner


def equal_obligations(z3: Z3, vector: int, text: str | None = None, *, tile_stride: int = 512) -> list[Obligation]:
    """The layout (``text``, or the explicit one) is the formula; ``tile_stride`` R is its second ``?`` stride."""
    row, k, block, element, rest_m, rest_k = z3.Ints("r k j e rest_m R")
    layout = parse_plain_layout(text or explicit(vector))
    found = evaluate(z3, layout, (row, k), unknowns=(rest_m, rest_k, tile_stride * rest_k))
    facts, digits = cublas_digits(z3, row, block)
    facts[f"k = {vector} j + e, 0 <= e < {vector}"] = z3.And(
        k == vector * block + element, element >= 0, element < vector
    )
    shown = {"r": row, "k": k, "R": rest_k}
    tile, quarter, line, ktile, inner = digits
    pairs = [(found.digits[0], (line, quarter, tile)), (found.digits[1], (element, inner, ktile))]
    same = [mine == theirs for ours, wanted in pairs for mine, theirs in zip(ours, wanted, strict=True)]
    value, wanted = found.value, cublas(digits, rest_k)
    alone = {f"the digits are the same ({at})": formula for at, formula in enumerate(same)}
    ranges = {words: formula for words, formula in facts.items() if "<" in words}
    ranges |= {"0 <= r//128": tile >= 0, "0 <= j//4 < R": z3.And(ktile >= 0, ktile < rest_k)}
    place = {"r": 128 * tile + 32 * quarter + line, "j": 4 * ktile + inner, "R": rest_k}
    return [
        Obligation("CuTe's digits of r and k are the formula's", facts | found.facts, z3.And(*same), shown),
        Obligation(
            "the offsets are the same", ranges | alone, value == wanted, place | {"CuTe": value, "cuBLAS": wanted}
        ),
    ]


LINEAR = "(((32,4),?),((16,4),?)):(((4,128),?),((0,1),512))"
"""Not the layout: a tile's rows one after another, 4 factors each, as plain scale factors lie."""


def _equal(vector: int) -> Claim:
    wrong = LINEAR.replace("16,4),?))", f"{vector},4),?))")
    return Claim(
        name=f"scale-factors.cublas-{vector}",
        words=f"For all m, k and every (r, k): CuTe's scale-factor layout with {vector} elements to a factor is "
        "cuBLAS's 128x4 layout.",
        formulas=(f"{explicit(vector)} at (r, k), ? = rest_m, R, 512 R", f"= {FORMULA},  j = k // {vector}"),
        method=Method.Z3,
        check=Questions(lambda z3: equal_obligations(z3, vector)),
        preconditions=("r, k >= 0", "R = ceil(k / (4 V)), V elements to a factor"),
        controls=(
            Control(
                "rows of a tile one after another, as in plain factors",
                Questions(lambda z3: equal_obligations(z3, vector, wrong)),
            ),
            Control(
                "tiles of rows 256 R apart",
                Questions(lambda z3: equal_obligations(z3, vector, tile_stride=256)),
            ),
        ),
    )


# --- one place a factor, one factor a place -----------------------------------------------------------------------


def bijective_obligations(z3: Z3, *, rest_k_short: bool = False, rest_m_short: bool = False) -> list[Obligation]:
    """Injective, and onto [0, 512 rest_m R).

    Wrong with ``rest_k_short`` (j may reach past the R tiles of k) or ``rest_m_short`` (r past the rest_m of rows).
    """
    row, block, other_row, other_block, rest_m, rest_k = z3.Ints("r j r' j' rest_m R")
    facts, mine = cublas_digits(z3, row, block)
    more, theirs = cublas_digits(z3, other_row, other_block, suffix="'")
    limit = rest_k + 1 if rest_k_short else rest_k
    past = 1 if rest_m_short else 0
    bounds = {
        "j//4 < R": z3.And(mine[3] >= 0, mine[3] < limit),
        "j'//4 < R": z3.And(theirs[3] >= 0, theirs[3] < limit),
        "0 <= r, r'": z3.And(mine[0] >= 0, theirs[0] >= 0),
    }
    tile, other_tile, inside = z3.Ints("tile tile' inside")
    places = [(digits[1], digits[2], digits[4]) for digits in (mine, theirs)]
    same = {"the same byte": in_tile(tile, places[0]) == in_tile(other_tile, places[1])}
    shown = {"r": row, "j": block, "r'": other_row, "j'": other_block, "R": rest_k}
    ranges = {words: formula for words, formula in (facts | more).items() if "<" in words}
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
            bounds | {"tile = r//128 R + j//4": mine[0] * rest_k + mine[3] == theirs[0] * rest_k + theirs[3]},
            z3.And(mine[0] == theirs[0], mine[3] == theirs[3]),
            {"R": rest_k, "r//128": mine[0], "j//4": mine[3], "r'//128": theirs[0], "j'//4": theirs[3]},
        ),
        Obligation(
            "every byte of a tile is a factor's",
            {
                "0 <= inside": inside >= 0,
                "inside < 512": inside < 512,
                "its digits": z3.And(
                    inside == 16 * line + 4 * quarter + inner, inner >= 0, inner < 4, quarter >= 0, quarter < 4
                ),
            },
            z3.And(line >= 0, line < 32),
            {"inside": inside},
        ),
        Obligation(
            "every tile is one of rows and k-blocks",
            {
                "0 <= tile": tile >= 0,
                "tile < rest_m R": tile < rest_m * rest_k,
                "tile = tile_row R + tile_k": tile == tile_row * rest_k + tile_k,
                "0 <= tile_k < R": z3.And(tile_k >= 0, tile_k < rest_k),
                "rest_m >= 0": rest_m >= 0,
            },
            z3.And(tile_row >= 0, tile_row < rest_m),
            {"tile": tile, "rest_m": rest_m, "R": rest_k},
        ),
        Obligation(
            "no factor lies past the end",
            facts
            | {"j//4 < R": bounds["j//4 < R"], "0 <= r//128 < rest_m": z3.And(mine[0] >= 0, mine[0] < past + rest_m)},
            z3.And(cublas(mine, rest_k) >= 0, cublas(mine, rest_k) < 512 * rest_m * rest_k),
            shown | {"rest_m": rest_m},
        ),
    ]


def _bijective() -> Claim:
    return Claim(
        name="scale-factors.bijective",
        words="Every byte of the ceil(m / 128) x R tiles of 512 bytes holds exactly one factor (r, j) with r < 128 "
        "ceil(m / 128) and j < 4 R: those with r >= m or j >= k / V are padding, all others the tensor's.",
        formulas=("(r, j) -> byte is a bijection of [0, 128 rest_m) x [0, 4 R) and [0, 512 rest_m R)",),
        method=Method.Z3,
        check=Questions(bijective_obligations),
        preconditions=("R >= ceil(blocks / 4): the tiles are stored whole",),
        controls=(
            Control(
                "R one too small for the blocks of a row",
                Questions(lambda z3: bijective_obligations(z3, rest_k_short=True)),
                lambda: "k = 320 with R = 4 instead of 5: (r, j) = (0, 16) and (128, 0) share byte 2048",
            ),
            Control(
                "the rows are not padded: rest_m = m // 128, rounded down",
                Questions(lambda z3: bijective_obligations(z3, rest_m_short=True)),
                lambda: "m = 129 with rest_m = 1 instead of 2, R = 4: (r, j) = (128, 0) is at byte 2048 of 2048",
            ),
        ),
    )


# --- broadcast ----------------------------------------------------------------------------------------------------


def broadcast_obligations(z3: Z3, vector: int, *, claimed: int | None = None) -> list[Obligation]:
    """Two k of one row share a byte exactly if they are in one run of ``claimed`` (V) elements."""
    k, other, rest_m, rest_k, row = z3.Ints("k k' rest_m R r")
    claimed = claimed or vector
    layout = parse_plain_layout(explicit(vector))
    one = evaluate(z3, layout, (row, k), unknowns=(rest_m, rest_k, 512 * rest_k), prefix="d")
    two = evaluate(z3, layout, (row, other), unknowns=(rest_m, rest_k, 512 * rest_k), prefix="e")
    block, rest, other_block, other_rest = z3.Ints("j e j' e'")
    runs = {
        f"k = {claimed} j + e": z3.And(k == claimed * block + rest, rest >= 0, rest < claimed),
        f"k' = {claimed} j' + e'": z3.And(
            other == claimed * other_block + other_rest, other_rest >= 0, other_rest < claimed
        ),
    }
    # Of one row, the offsets differ by what the digits of k contribute.
    difference = (
        one.value
        - two.value
        - sum(
            (a - b) * stride for a, b, stride in zip(one.digits[0], two.digits[0], (16, 4, 512 * rest_k), strict=True)
        )
    )
    return [
        Obligation(
            f"the same byte exactly for the same k // {claimed}",
            runs | dict(one.by_mode[1]) | dict(two.by_mode[1]),
            (z3.simplify(difference) == 0) == (block == other_block),
            {"k": k, "k'": other},
        )
    ]


def _broadcast(vector: int) -> Claim:
    wrong = 48 - vector
    return Claim(
        name=f"scale-factors.broadcast-{vector}",
        words=f"A factor is shared by exactly {vector} elements of k: k and k' of a row have the same byte if and only "
        f"if k // {vector} = k' // {vector}.",
        formulas=(f"offset(r, k) = offset(r, k')  <=>  k // {vector} = k' // {vector}",),
        method=Method.Z3,
        check=Questions(lambda z3: broadcast_obligations(z3, vector)),
        preconditions=("0 <= k, k'",),
        controls=(
            Control(
                f"shared by {wrong} elements",
                Questions(lambda z3: broadcast_obligations(z3, vector, claimed=wrong)),
            ),
        ),
    )


# --- without a solver ---------------------------------------------------------------------------------------------


def formula(row: int, block: int, *, rest_k: int) -> int:
    """cuBLAS's formula on numbers."""
    return (row // 128 * rest_k + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


def compare_tile(text: str, *, vector: int, rest_m: int = 2, rest_k: int = 3) -> Look:
    """The first (r, k) of ``rest_m x rest_k`` tiles at which a static layout is not the formula."""
    layout = parse_plain_layout(text)
    rows, columns = 128 * rest_m, 4 * vector * rest_k
    wanted = [formula(row, k // vector, rest_k=rest_k) for k in range(columns) for row in range(rows)]
    got = values(layout)
    if len(got) != len(wanted):
        return f"{text} has {len(got)} places, and {rows} rows by {columns} elements of k are {len(wanted)}", len(got)
    for at, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        if mine != theirs:
            return f"(r, k) = ({at % rows}, {at // rows}) is at {mine}, and cuBLAS has it at {theirs}", at + 1
    return None, len(wanted)


def static(vector: int, *, rest_m: int = 2, rest_k: int = 3) -> str:
    """The explicit layout with numbers for its ``?``."""
    return f"(((32,4),{rest_m}),(({vector},4),{rest_k})):(((16,4),{512 * rest_k}),((0,1),512))"


def _tile() -> Claim:
    def both() -> Look:
        looked = 0
        for vector in VECTORS:
            wrong, count = compare_tile(static(vector, rest_m=1, rest_k=2), vector=vector, rest_m=1, rest_k=2)
            looked += count
            if wrong:
                return wrong, looked
        return None, looked

    linear = "(((32,4),1),((16,4),2)):(((4,128),1024),((0,1),512))"
    return Claim(
        name="scale-factors.two-tiles",
        words="On 128 rows and two tiles of k, every (r, k) of the layout is where cuBLAS's formula has it.",
        formulas=(f"{static(16, rest_m=1, rest_k=2)} = {FORMULA}",),
        method=Method.EXHAUSTIVE,
        check=Cases(both, "places"),
        controls=(
            Control(
                "rows of a tile one after another, as in plain factors",
                Cases(lambda: compare_tile(linear, vector=16, rest_m=1, rest_k=2), "places"),
            ),
        ),
    )
