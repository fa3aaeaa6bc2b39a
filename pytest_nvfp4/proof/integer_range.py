"""The CTA map in 32-bit signed arithmetic: no intermediate value leaves [-2^31, 2^31), and the bounds are the largest.

Two's complement arithmetic is exact where no intermediate value leaves its range, so that the proofs over all integers
hold for the machine's. The largest bounds: a number above one of them makes an intermediate value leave the range.
"""

from __future__ import annotations

from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Questions, Term
from pytest_nvfp4.proof.statement import Claim, Control, Method

LARGEST = 2**31 - 1

BOUNDS = (
    "m <= 2^31 - t and n <= 2^31 - t_n: the sum before the division by the tile is below 2^31",
    "P(G) <= 2^31 - 1: the largest grid along x, and the largest tile number + 1",
    "G <= 2^30: low + high of the binary search (a linear scan: G <= 2^31 - 1)",
    "P(G) + C <= 2^31 for a persistent grid of C CTAs: the step behind the last tile",
)


def claims() -> tuple[Claim, ...]:
    """The claims on 32-bit arithmetic."""
    return (_range(), _machine())


def _fits(z3: Z3, *terms: Term) -> Formula:
    return z3.And(*(z3.And(term >= -(2**31), term <= LARGEST) for term in terms))


def range_obligations(z3: Z3, *, slack: int = 0) -> list[Obligation]:
    """Each intermediate value under its bound; with ``slack`` 1, wrongly, under a bound that is one larger."""
    m, size, count, rest = z3.Ints("m t M rest")
    low, high, groups = z3.Ints("low high G")
    first, b, total, place, x, y, columns, ctas = z3.Ints("P(g) b P(G) place x y N C")
    sizes = {
        "m >= 0": m >= 0,
        "t >= 1": size >= 1,
        "m <= 2^31 - t": m <= 2**31 - size + slack,
        "t <= 2^31 - 1": size <= LARGEST,
    }
    sizes_divided = z3.And(m + size - 1 == count * size + rest, rest >= 0, rest < size)
    grid = {"P(G) <= 2^31 - 1": total <= LARGEST + slack, "b < P(G)": b < total}
    group = {"0 <= P(g)": first >= 0, "P(g) <= b": first <= b}
    row, group_at = z3.Ints("row g")
    return [
        Obligation(
            "the sum before the division by the tile",
            sizes,
            _fits(z3, m + size - 1, size - 1),
            {"m": m, "t": size, "m + t - 1": m + size - 1},
        ),
        Obligation(
            "the quotient is at most what is divided",
            {"m >= 0": m >= 0, "t >= 1": size >= 1, "M = (m + t - 1) // t": sizes_divided, "M >= 0": count >= 0},
            count <= m + size - 1,
            {"m": m, "t": size, "M": count},
        ),
        Obligation(
            "the rows of a tile",
            {
                "t >= 1": size >= 1,
                "m <= 2^31 - t": sizes["m <= 2^31 - t"],
                "0 <= x t": row >= 0,
                "x t < m, as no tile is empty": row < m,
            },
            _fits(z3, row, row + size - 1),
            {"m": m, "t": size, "x t": row, "x t + t - 1": row + size - 1},
        ),
        Obligation(
            "the binary search",
            {
                "0 <= low": low >= 0,
                "high <= G": high <= groups,
                "the loop goes on": high - low > 1,
                "G <= 2^30": groups <= 2**30 + slack,
            },
            _fits(z3, low + high, high - low),
            {"G": groups, "low": low, "high": high, "low + high": low + high},
        ),
        Obligation(
            "the linear scan",
            {"0 <= g": group_at >= 0, "g < G": group_at < groups, "G <= 2^31 - 1": groups <= LARGEST + slack},
            _fits(z3, group_at, group_at + 1),
            {"G": groups, "g": group_at, "g + 1": group_at + 1},
        ),
        Obligation("the place in the group", grid | group, _fits(z3, b, b - first), {"b": b, "P(G)": total}),
        Obligation(
            "prefix sums",
            {
                "0 <= P(g)": first >= 0,
                "M, N >= 0": z3.And(count >= 0, columns >= 0),
                "P(g) + M N <= P(G)": first + place <= total,
                "M N": z3.And(place >= 0),
                "P(G) <= 2^31 - 1": grid["P(G) <= 2^31 - 1"],
            },
            _fits(z3, first, place, first + place),
            {"P(g)": first, "M N": place},
        ),
        Obligation(
            "the tile of the place",
            {
                "place = y M + x": place == row + x,
                "0 <= y M": row >= 0,
                "0 <= x": x >= 0,
                "x < M": x < count,
                "0 <= y": y >= 0,
                "y < N": y < columns,
                "M and N are 32-bit, as tile counts": _fits(z3, count, columns),
                "place < P(G)": place < total,
                "P(G) <= 2^31 - 1": grid["P(G) <= 2^31 - 1"],
            },
            _fits(z3, row, x, y, place),
            {"place": place, "x": x, "y": y, "M": count},
        ),
        Obligation(
            "a persistent grid's step",
            {
                "0 <= b": b >= 0,
                "b < P(G)": b < total,
                "C >= 1": ctas >= 1,
                "P(G) + C <= 2^31": total + ctas <= 2**31 + slack,
            },
            _fits(z3, b + ctas),
            {"b": b, "C": ctas, "b + C": b + ctas},
        ),
    ]


def _only(name: str, *, slack: int) -> Questions:
    return Questions(lambda z3: [one for one in range_obligations(z3, slack=slack) if one.name == name])


def _range() -> Claim:
    return Claim(
        name="cta-indexing.int32",
        words="In 32-bit signed integers no intermediate value of the map, of the host's sums or of a persistent loop "
        "overflows, under bounds of which none can be raised by one.",
        formulas=tuple(BOUNDS),
        method=Method.Z3,
        check=Questions(range_obligations),
        preconditions=("all sizes are >= 0, tiles >= 1", "every value is a signed 32-bit integer"),
        controls=(
            Control(
                "m <= 2^31 - t + 1",
                _only("the sum before the division by the tile", slack=1),
                lambda: "problem 2147483521x128x256 with t = 128: m + 127 = 2147483648 wraps to -2147483648",
            ),
            Control(
                "G <= 2^30 + 1",
                _only("the binary search", slack=1),
                lambda: "2^30 + 1 groups, b in the last one: low + high = 2147483648 wraps to a negative middle",
            ),
            Control("G <= 2^31 for a linear scan", _only("the linear scan", slack=1)),
            Control("P(G) <= 2^31", _only("prefix sums", slack=1)),
            Control("P(G) + C <= 2^31 + 1", _only("a persistent grid's step", slack=1)),
        ),
    )


def machine_obligations(z3: Z3, *, tile: int, largest: int) -> list[Obligation]:
    """The machine's own ``(m + tile - 1) / tile`` on 32 bits against the same on 64, for 0 <= m <= ``largest``."""
    m = z3.BitVec("m", 32)
    wide = z3.SignExt(32, m)
    narrow = (m + (tile - 1)) / z3.BitVecVal(tile, 32)
    return [
        Obligation(
            f"tile {tile}",
            {"m >= 0": m >= 0, f"m <= {largest}": m <= largest},
            z3.SignExt(32, narrow) == (wide + (tile - 1)) / z3.BitVecVal(tile, 64),
            {"m": m},
        )
    ]


def _machine() -> Claim:
    tiles = (64, 128, 256)
    return Claim(
        name="cta-indexing.int32-machine",
        words="Over 32-bit vectors, the tile count that the machine computes is that of the integers for tiles of 64, "
        "128 and 256 rows up to m = 2^31 - t.",
        formulas=("0 <= m <= 2^31 - t  =>  int32((m + t - 1) / t) = ceil(m / t)",),
        method=Method.Z3,
        check=Questions(
            lambda z3: [one for tile in tiles for one in machine_obligations(z3, tile=tile, largest=2**31 - tile)]
        ),
        preconditions=("m is a signed 32-bit integer",),
        controls=(
            Control(
                "m up to 2^31 - 1",
                Questions(lambda z3: machine_obligations(z3, tile=128, largest=LARGEST)),
            ),
        ),
    )
