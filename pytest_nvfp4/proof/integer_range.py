"""The CTA map in 32-bit signed arithmetic: no intermediate value overflows, and the bounds are the largest possible.

Two's complement arithmetic is exact while every intermediate value lies in [-2^31, 2^31), so under these bounds the
proofs over all integers hold on the machine. Each bound is tight: one more, and an intermediate value overflows.
"""

from __future__ import annotations

from pytest_nvfp4.proof.schedules import ceil_division
from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Term, between, claim_by_z3, facts
from pytest_nvfp4.proof.statement import Claim, Mistake

LARGEST = 2**31 - 1

BOUNDS = (
    "m <= 2^31 - t and n <= 2^31 - t_n: the sum before the division by the tile is below 2^31",
    "P(G) <= 2^31 - 1: the largest grid along x, and the largest tile number + 1",
    "G <= 2^30: low + high of the binary search (a linear scan: G <= 2^31 - 1)",
    "P(G) + C <= 2^31 for a persistent grid of C CTAs: the step behind the last tile",
)


def claims() -> tuple[Claim, ...]:
    """Return the claims on 32-bit arithmetic."""
    return (_range(), _machine())


def _fits(z3: Z3, *terms: Term) -> Formula:
    return z3.And(*(z3.And(term >= -(2**31), term <= LARGEST) for term in terms))


def range_obligations(z3: Z3, *, slack: int = 0, only: str | None = None) -> list[Obligation]:
    """Every intermediate value fits under its bound; with ``slack`` 1, wrongly, under a bound that is one larger.

    ``only`` selects the obligation of that name.
    """
    m, size, count, rest, row, group_at = z3.Ints("m t M rest row g")
    low, high, groups = z3.Ints("low high G")
    first, b, total, place, x, y, columns, ctas = z3.Ints("P(g) b P(G) place x y N C")
    size_bound = {"m <= 2^31 - t": m <= 2**31 - size + slack}
    grid_bound = {"P(G) <= 2^31 - 1": total <= LARGEST + slack}
    obligations = [
        Obligation(
            "the sum before the division by the tile",
            facts(m >= 0, size >= 1, size <= LARGEST) | size_bound,
            _fits(z3, m + size - 1, size - 1),
            {"m": m, "t": size, "m + t - 1": m + size - 1},
        ),
        Obligation(
            "the quotient is at most what is divided",
            facts(m >= 0, size >= 1, count >= 0) | {"M = (m + t - 1) // t": ceil_division(z3, count, m, size, rest)},
            count <= m + size - 1,
            {"m": m, "t": size, "M": count},
        ),
        Obligation(
            "the rows of a tile",
            facts(size >= 1) | size_bound | {"0 <= x t": row >= 0, "x t < m, as no tile is empty": row < m},
            _fits(z3, row, row + size - 1),
            {"m": m, "t": size, "x t": row, "x t + t - 1": row + size - 1},
        ),
        Obligation(
            "the binary search",
            facts(low >= 0, high <= groups)
            | {"the loop continues": high - low > 1, "G <= 2^30": groups <= 2**30 + slack},
            _fits(z3, low + high, high - low),
            {"G": groups, "low": low, "high": high, "low + high": low + high},
        ),
        Obligation(
            "the linear scan",
            facts(*between(0, group_at, groups)) | {"G <= 2^31 - 1": groups <= LARGEST + slack},
            _fits(z3, group_at, group_at + 1),
            {"G": groups, "g": group_at, "g + 1": group_at + 1},
        ),
        Obligation(
            "the place in the group",
            facts(b < total, *between(0, first, b + 1)) | grid_bound,
            _fits(z3, b, b - first),
            {"b": b, "P(G)": total},
        ),
        Obligation(
            "prefix sums",
            facts(first >= 0, count >= 0, columns >= 0)
            | {"P(g) + M N <= P(G)": first + place <= total}
            | {"0 <= M N": place >= 0}
            | grid_bound,
            _fits(z3, first, place, first + place),
            {"P(g)": first, "M N": place},
        ),
        Obligation(
            "the tile of the place",
            facts(*between(0, x, count), *between(0, y, columns), place < total)
            | {"place = y M + x": place == row + x, "0 <= y M": row >= 0}
            | {"M and N are 32-bit, as tile counts": _fits(z3, count, columns)}
            | grid_bound,
            _fits(z3, row, x, y, place),
            {"place": place, "x": x, "y": y, "M": count},
        ),
        Obligation(
            "a persistent grid's step",
            facts(*between(0, b, total), ctas >= 1) | {"P(G) + C <= 2^31": total + ctas <= 2**31 + slack},
            _fits(z3, b + ctas),
            {"b": b, "C": ctas, "b + C": b + ctas},
        ),
    ]
    return [each for each in obligations if only in (None, each.name)]


def _raised(words: str, obligation: str, example: str | None = None) -> Mistake:
    """Return the mistake of a bound that is one larger."""
    return Mistake(words, {"slack": 1, "only": obligation}, example)


def _range() -> Claim:
    return claim_by_z3(
        "cta-indexing.int32",
        "In 32-bit signed integers no intermediate value of the map, of the host's sums or of a persistent loop "
        "overflows, under bounds none of which can be raised by one.",
        range_obligations,
        formulas=BOUNDS,
        given=("all sizes are >= 0, tiles >= 1", "every value is a signed 32-bit integer"),
        controls=(
            _raised(
                "m <= 2^31 - t + 1",
                "the sum before the division by the tile",
                "problem 2147483521x128x256 with t = 128: m + 127 = 2147483648 wraps to -2147483648",
            ),
            _raised(
                "G <= 2^30 + 1",
                "the binary search",
                "2^30 + 1 groups, b in the last one: low + high = 2147483648 wraps to a negative middle",
            ),
            _raised("G <= 2^31 for a linear scan", "the linear scan"),
            _raised("P(G) <= 2^31", "prefix sums"),
            _raised("P(G) + C <= 2^31 + 1", "a persistent grid's step"),
        ),
    )


TILES = (64, 128, 256)


def machine_obligations(z3: Z3, *, tile: int | None = None, largest: int | None = None) -> list[Obligation]:
    """``(m + tile - 1) / tile`` in 32 bits equals the same in 64 bits for 0 <= m <= ``largest``.

    Defaults: every tile of `TILES`, and the largest m that does not overflow.
    """
    m = z3.BitVec("m", 32)
    obligations = []
    for size in TILES if tile is None else (tile,):
        bound = 2**31 - size if largest is None else largest
        narrow = (m + (size - 1)) / z3.BitVecVal(size, 32)
        wide = (z3.SignExt(32, m) + (size - 1)) / z3.BitVecVal(size, 64)
        obligations.append(
            Obligation(f"tile {size}", facts(m >= 0, m <= bound), z3.SignExt(32, narrow) == wide, {"m": m})
        )
    return obligations


def _machine() -> Claim:
    return claim_by_z3(
        "cta-indexing.int32-machine",
        "In arithmetic on 32-bit vectors, the tile count equals that of the integers for tiles of 64, 128 and 256 rows "
        "up to m = 2^31 - t.",
        machine_obligations,
        formulas=("0 <= m <= 2^31 - t  =>  int32((m + t - 1) / t) = ceil(m / t)",),
        given=("m is a signed 32-bit integer",),
        controls=(Mistake("m up to 2^31 - 1", {"tile": 128, "largest": LARGEST}),),
    )
