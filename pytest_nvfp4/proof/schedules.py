"""Schedules on top of the CTA map: rasters, sorted groups, 2-CTA clusters, persistent grids and the host's grid.

The claims of `pytest_nvfp4.proof.cta_indexing` hold for any counts and any b below P(G). This module proves that a
schedule assigns every such b, or every tile, to exactly one CTA.
"""

from __future__ import annotations

from functools import partial

from pytest_nvfp4.proof import cta_map
from pytest_nvfp4.proof.cta_indexing import COUNTS_GIVEN, raster_obligations
from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Term, between, claim_by_z3, facts
from pytest_nvfp4.proof.statement import Claim, Mistake


def claims() -> tuple[Claim, ...]:
    """Return the claims on schedules."""
    return (_tiles(), _host_grid(), _n_major(), _sorted(), _clusters(), _persistent())


# --- tiles of a group, and the host's grid ------------------------------------------------------------------------


def ceil_division(z3: Z3, count: Term, size: Term, tile: Term, rest: Term) -> Formula:
    """``count = (size + tile - 1) // tile``, defined by its remainder."""
    return z3.And(size + tile - 1 == count * tile + rest, *between(0, rest, tile))


def tile_obligations(z3: Z3, *, up: bool = True) -> list[Obligation]:
    """``ceil(m / t)`` tiles of t rows cover m rows, and none is empty; without ``up``, wrongly, ``floor(m / t)``."""
    m, size, count, rest, row, x, other = z3.Ints("m t M rest row x x'")
    shown = {"m": m, "t": size, "M": count, "row": row, "x": x}
    above = m + size - 1 if up else m
    given = facts(m >= 0, size >= 1, *between(0, rest, size)) | {"M = (m + t - 1) // t": above == count * size + rest}
    in_tile = facts(*between(x * size, row, (x + 1) * size))
    in_other = facts(*between(other * size, row, (other + 1) * size))
    return [
        Obligation(
            "every row is in one of the M tiles",
            given | in_tile | facts(*between(0, row, m)),
            z3.And(*between(0, x, count)),
            shown,
        ),
        Obligation("no row is in two tiles", facts(size >= 1) | in_tile | in_other, x == other, shown),
        Obligation("the number of tiles is not negative", given, count >= 0, shown),
        Obligation("no row, no tile", given | facts(m == 0), count == 0, shown),
        Obligation("no tile is empty", given | facts(*between(0, x, count)), x * size < m, shown),
    ]


def _tiles() -> Claim:
    return claim_by_z3(
        "cta-indexing.tiles",
        "With any tile size t, a group of m rows has ceil(m / t) tiles: each row is in exactly one of them and none is "
        "empty. A group without rows has no tiles.",
        tile_obligations,
        formulas=("M = (m + t - 1) // t >= 0", "0 <= row < m  =>  row // t < M", "0 <= x < M  =>  x t < m"),
        given=("m >= 0", "t >= 1"),
        controls=(
            Mistake(
                "M = m // t, rounded down",
                {"up": False},
                "problem 129x128x256 with t = 128: M = 1, and row 128 is in no tile",
            ),
        ),
    )


def host_obligations(z3: Z3, *, device_tile: int | None = None) -> list[Obligation]:
    """The host's sum is P(G), by induction; wrong with ``device_tile``: the host divides by 128, the device by it."""
    host, device, m, n, n_tile = z3.Ints("S(g) P(g) m n t_n")
    host_tiles, device_tiles, host_rest, device_rest, columns, columns_rest = z3.Ints("M' M r' r N r_n")
    host_tile, tile = z3.Ints("t' t")
    shown = {"m": m, "t of the host": host_tile, "t of the device": tile, "M of the host": host_tiles}
    shown |= {"M": device_tiles}
    same_sum = {"S(g) = P(g)": host == device}
    tiles = facts(host_tile >= 1, tile >= 1) | {
        "M' = ceil(m / t')": ceil_division(z3, host_tiles, m, host_tile, host_rest),
        "M = ceil(m / t)": ceil_division(z3, device_tiles, m, tile, device_rest),
    }
    next_sums = host + host_tiles * columns == device + device_tiles * columns
    if device_tile is None:
        same_tile = {"the tiles are the same: t' = t": host_tile == tile}
        counted = "host and device count the same tiles of M"
        return [
            Obligation(counted, tiles | same_tile, host_tiles == device_tiles, shown),
            Obligation("S(g+1) = P(g+1)", same_sum | {"M' = M": host_tiles == device_tiles}, next_sums, shown),
        ]
    sizes = facts(m >= 0, host_tile == 128, tile == device_tile, n_tile == 128, n == 128)
    sizes["N = ceil(n / t_n)"] = ceil_division(z3, columns, n, n_tile, columns_rest)
    return [Obligation("S(g+1) = P(g+1)", same_sum | tiles | sizes, next_sums, shown)]


def _host_grid() -> Claim:
    return claim_by_z3(
        "cta-indexing.host-grid",
        "The grid that the host launches is P(G), the sum of all tiles, when host and device round with the same tile: "
        "no CTA too few, none too many.",
        host_obligations,
        formulas=("S(0) = 0,  S(g+1) = S(g) + ceil(m_g / t') ceil(n_g / t_n)", "t' = t  =>  S(G) = P(G)"),
        given=("the host's tile t' is the device's tile t, in M and in N", "m_g >= 0, n_g >= 1"),
        controls=(
            Mistake(
                "the host's M tile is written as 128, the device's mma_tiler[0] is 256",
                {"device_tile": 256},
                "problem 256x128x256: the host launches 2 CTAs for the device's 1 tile",
            ),
            Mistake(
                "the host's M tile is written as 128, the device's mma_tiler[0] is 64",
                {"device_tile": 64},
                "problem 128x128x256: the host launches 1 CTA for the device's 2 tiles; rows 64-127 stay unwritten",
            ),
        ),
    )


# --- rasters ------------------------------------------------------------------------------------------------------


def _n_major() -> Claim:
    return claim_by_z3(
        "cta-indexing.n-major",
        "The N-major raster (y varies fastest) is a bijection of a group's places and tiles, as the M-major one is: "
        "the two differ in the order alone.",
        partial(raster_obligations, n_major=True),
        formulas=("place = x N_g + y,  0 <= x < M_g,  0 <= y < N_g",),
        given=(COUNTS_GIVEN,),
        controls=(
            Mistake(
                "N-major divided by M: x = place // M, y = place % M",
                {"swapped": True},
                cta_map.example(cta_map.launched(raster=cta_map.divided_by_m)),
            ),
        ),
    )


# --- groups in another order --------------------------------------------------------------------------------------


def sorted_obligations(z3: Z3, *, permutation: bool = True, through_order: bool = True) -> list[Obligation]:
    """Groups in the order ``o``: position p of the sorted table is group o(p).

    Wrong without ``permutation`` (o may be no permutation) or ``through_order`` (the position is used as the group).
    """
    order, position = z3.Function("o", z3.IntSort(), z3.IntSort()), z3.Function("p", z3.IntSort(), z3.IntSort())
    count = z3.Function("T", z3.IntSort(), z3.IntSort())
    g, i, j, place = z3.Ints("g i j place")
    first, second, third, other_second, other_third = z3.Ints("Q(i) Q(i+1) Q(i+2) Q'(i+1) Q'(i+2)")
    inverse = facts(position(order(i)) == i, position(order(j)) == j) if permutation else {}
    group = order(i) if through_order else i
    return [
        Obligation(
            "every group has a position", {"o(p(g)) = g": order(position(g)) == g}, z3.Exists([i], order(i) == g)
        ),
        Obligation(
            "no group has two",
            {"o(i) = o(j)": order(i) == order(j)} | inverse,
            i == j,
            {"i": i, "j": j, "o(i)": order(i), "o(j)": order(j)},
        ),
        Obligation(
            "a place of position i is a place of its group",
            facts(*between(0, place, count(order(i)))),
            place < count(group),
            {"i": i, "o(i)": order(i), "place": place, "T(i)": count(i), "T(o(i))": count(order(i))},
        ),
        # Adjacent transpositions generate every permutation, so one exchange is enough.
        Obligation(
            "exchanging neighbours keeps the sum behind them, so any order keeps the grid",
            {
                "Q(i+1) = Q(i) + T(o(i))": second == first + count(order(i)),
                "Q(i+2) = Q(i+1) + T(o(j))": third == second + count(order(j)),
                "Q'(i+1) = Q(i) + T(o(j))": other_second == first + count(order(j)),
                "Q'(i+2) = Q'(i+1) + T(o(i))": other_third == other_second + count(order(i)),
            },
            third == other_third,
            {"Q(i)": first, "Q(i+2)": third, "Q'(i+2)": other_third},
        ),
    ]


def _sorted() -> Claim:
    def position_as_group(counts: cta_map.Counts) -> list[cta_map.OutputTile]:
        """Search the sorted table and use the position as the group."""
        order = sorted(range(len(counts)), key=lambda g: -counts[g][0])
        return cta_map.launched()([counts[g] for g in order])

    def by_value(counts: cta_map.Counts) -> list[cta_map.OutputTile]:
        """Look the order up by value, which merges groups of equal size."""
        order = [counts.index(each) for each in sorted(counts, reverse=True)]
        return [tile._replace(group=order[tile.group]) for tile in cta_map.launched()([counts[g] for g in order])]

    return claim_by_z3(
        "cta-indexing.sorted-groups",
        "With the groups in any order o, a permutation, the map over the sorted counts followed by o computes every "
        "tile once, and the grid is the same.",
        sorted_obligations,
        formulas=("Q = prefix sums of T(o(0)), T(o(1)), ...", "b -> (o(i), x, y) with Q(i) <= b < Q(i+1)"),
        given=("o is a permutation of 0 .. G-1, its inverse p", "the map's claims, for the counts T(o(i))"),
        controls=(
            Mistake(
                "o is not a permutation: groups of equal size are looked up by value",
                {"permutation": False},
                cta_map.example(by_value),
            ),
            Mistake(
                "the position in the sorted table is used as the group",
                {"through_order": False},
                cta_map.example(position_as_group),
            ),
        ),
    )


# --- clusters of two CTAs -----------------------------------------------------------------------------------------


def cluster_obligations(z3: Z3, *, up: bool = True, padded: bool = True) -> list[Obligation]:
    """Pairs of CTAs along M: H = ceil(M / 2) cluster tiles.

    Wrong without ``up`` (H = M // 2) or ``padded`` (CTAs 2c and 2c + 1 of the plain map form a cluster).
    """
    if not padded:
        return _neighbour_obligations(z3)
    m, n, half, x, y, big, rank, cluster, cta = z3.Ints("M N H x y X rank c b")
    u, rank_u = z3.Ints("U rank'")
    shown = {"M": m, "N": n, "H": half, "x": x, "y": y}
    pairs = z3.And(m <= 2 * half, 2 * half <= m + 1) if up else z3.And(*between(2 * half, m, 2 * half + 2))
    counts = facts(m >= 0, n >= 0) | {"H = ceil(M / 2)": pairs}
    one_of_two = {"rank is 0 or 1": z3.And(*between(0, rank, 2))}
    split = {"x = 2 X + rank": x == 2 * big + rank} | one_of_two
    return [
        Obligation(
            "every tile has its CTA",
            counts | facts(*between(0, x, m), *between(0, y, n)) | split,
            z3.And(*between(0, big, half)),
            shown,
        ),
        Obligation(
            "no two CTAs share a tile",
            split | {"x = 2 U + rank'": x == 2 * u + rank_u, "rank' is 0 or 1": z3.And(*between(0, rank_u, 2))},
            z3.And(big == u, rank == rank_u),
            shown,
        ),
        Obligation(
            "a CTA past the group's rows is the odd one's partner",
            counts | split | facts(*between(0, big, half), x >= m),
            z3.And(x == m, rank == 1, m == 2 * half - 1),
            shown,
        ),
        Obligation(
            "both CTAs of a cluster have its tile of N and its group",
            {"b = 2 c + rank": cta == 2 * cluster + rank} | one_of_two,
            z3.And(cta / 2 == cluster, cta % 2 == rank),
            {"b": cta, "c": cluster},
        ),
    ]


def paired(counts: cta_map.Counts, *, up: bool = True) -> list[cta_map.OutputTile]:
    """Return the tiles that clusters of two along M compute; a partner past the group's rows stores nothing."""
    halves = [((m + 1) // 2 if up else m // 2, n) for m, n in counts]
    return [
        cta_map.OutputTile(group, 2 * big + rank, y)
        for group, big, y in cta_map.launched()(halves)
        for rank in (0, 1)
        if 2 * big + rank < counts[group][0]
    ]


def _neighbour_obligations(z3: Z3) -> list[Obligation]:
    """Wrong: CTAs 2c and 2c + 1 of the plain map share their tile of N."""
    m, y, other_y, x, other_x, cluster = z3.Ints("M y y' x x' c")
    return [
        Obligation(
            "neighbours have one tile of N",
            facts(2 * cluster == y * m + x, 2 * cluster + 1 == other_y * m + other_x, y >= 0, other_y >= 0)
            | facts(*between(0, x, m), *between(0, other_x, m)),
            y == other_y,
            {"M": m, "c": cluster, "y": y, "y'": other_y},
        )
    ]


def _mixed_cluster(counts: cta_map.Counts) -> str | None:
    """Return a pair of neighbouring CTAs of the plain map that spans two groups or two y, as text."""
    done = cta_map.launched()(counts)
    for left, right in zip(done[::2], done[1::2], strict=False):
        if (left.group, left.y) != (right.group, right.y):
            return f"problem {cta_map.problem_text(counts)}: one cluster holds the tiles {left} and {right}"
    return None


def _clusters() -> Claim:
    return claim_by_z3(
        "cta-indexing.clusters",
        "With clusters of two CTAs along M and ceil(M_g / 2) cluster tiles a group, every tile has exactly one CTA, a "
        "cluster never spans two groups or two tiles of N, and the only CTA without a tile is the second one of a "
        "group's last pair when M_g is odd.",
        cluster_obligations,
        formulas=(
            "H_g = ceil(M_g / 2),  grid = 2 sum H_g N_g",
            "c = b // 2 -> (g, X, y) by the map over (H_g, N_g),  x = 2 X + b % 2",
            "x >= M_g  <=>  M_g odd, X = H_g - 1, b odd",
        ),
        given=("a CTA with x >= M_g stores nothing", "the map's claims, for the counts (H_g, N_g)"),
        controls=(
            Mistake("M_g // 2 cluster tiles, rounded down", {"up": False}, cta_map.example(partial(paired, up=False))),
            Mistake(
                "neighbours of the plain map, M_g not rounded to pairs, as a cluster",
                {"padded": False},
                lambda: next(filter(None, map(_mixed_cluster, cta_map.small_counts())), ""),
            ),
        ),
    )


# --- persistent grids ---------------------------------------------------------------------------------------------


def persistent_obligations(z3: Z3, *, start: int = 0) -> list[Obligation]:
    """CTA c of C computes b = c, c + C, ... below P; with ``start`` 1, wrongly, from c + 1."""
    ctas, c, d, i, j, b, total, first = z3.Ints("C c c' i i' b P(G) P(g)")
    shown = {"C": ctas, "c": c, "i": i, "b": b, "P(G)": total}
    number = facts(*between(0, c, ctas))
    return [
        Obligation(
            "every tile is computed",
            number | facts(ctas >= 1, *between(0, b, total)) | {"b - start = i C + c": b - start == i * ctas + c},
            i >= 0,
            shown,
        ),
        Obligation(
            "by one CTA, once",
            number | facts(*between(0, d, ctas)) | {"the same b": start + i * ctas + c == start + j * ctas + d},
            z3.And(c == d, i == j),
            shown | {"c'": d, "i'": j},
        ),
        Obligation("the loop ends", facts(ctas >= 1, b < total), total - (b + ctas) < total - b, shown),
        Obligation(
            "a scan may continue from its last group",
            facts(first <= b, ctas >= 1),
            first <= b + ctas,
            shown | {"P(g)": first},
        ),
    ]


def strided(counts: cta_map.Counts, *, ctas: int, start: int = 0) -> list[cta_map.OutputTile]:
    """Return the tiles that a persistent grid of ``ctas`` CTAs computes."""
    total = sum(m * n for m, n in counts)
    return [cta_map.placed(counts, b) for c in range(ctas) for b in range(c + start, total, ctas)]


def _persistent() -> Claim:
    return claim_by_z3(
        "cta-indexing.persistent",
        "A persistent grid of any C >= 1 CTAs, each computing b = c, c + C, c + 2 C, ... below P(G), computes every "
        "tile exactly once; the linear scan may continue from the group of its last tile.",
        persistent_obligations,
        formulas=("b = c + i C,  0 <= c < C,  i >= 0,  b < P(G)", "P(g) <= b  =>  P(g) <= b + C"),
        given=("C >= 1, the same for all CTAs", "the map's claims"),
        controls=(
            Mistake(
                "the first tile of CTA c is c + 1",
                {"start": 1},
                lambda: f"C = 2, {cta_map.small_failure(partial(strided, ctas=2, start=1)).counterexample}",
            ),
        ),
    )
