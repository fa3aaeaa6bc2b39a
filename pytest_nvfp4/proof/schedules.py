"""Schedules on top of the CTA map: rasters, sorted groups, 2-CTA clusters, persistent grids, and the host's grid.

The claims of `pytest_nvfp4.proof.cta_indexing` hold for any counts and any b below P(G). What is proved here is that a
schedule hands every such b, or every tile, to exactly one CTA.
"""

from __future__ import annotations

from pytest_nvfp4.proof import cta_map
from pytest_nvfp4.proof.solver import Z3, Obligation, Questions
from pytest_nvfp4.proof.statement import Claim, Control, Method


def claims() -> tuple[Claim, ...]:
    """The claims on schedules."""
    return (_tiles(), _host_grid(), _n_major(), _sorted(), _clusters(), _persistent())


# --- tiles of a group, and the host's grid ------------------------------------------------------------------------


def tile_obligations(z3: Z3, *, up: bool = True) -> list[Obligation]:
    """``ceil(m / t)`` tiles of t rows cover m rows, and none is empty; without ``up``, wrongly, ``floor(m / t)``."""
    m, size, count, rest, row, x, other = z3.Ints("m t M rest row x x'")
    shown = {"m": m, "t": size, "M": count, "row": row, "x": x}
    above = m + size - 1 if up else m
    given = {
        "m >= 0": m >= 0,
        "t >= 1": size >= 1,
        "M = (m + t - 1) // t": above == count * size + rest,
        "0 <= rest": rest >= 0,
        "rest < t": rest < size,
    }
    holds = {"x t <= row": x * size <= row, "row < (x+1) t": row < (x + 1) * size}
    also = {"x' t <= row": other * size <= row, "row < (x'+1) t": row < (other + 1) * size}
    return [
        Obligation(
            "every row is in one of the M tiles",
            given | holds | {"0 <= row": row >= 0, "row < m": row < m},
            z3.And(x >= 0, x < count),
            shown,
        ),
        Obligation("no row is in two", {"t >= 1": size >= 1} | holds | also, x == other, shown),
        Obligation("there are no fewer than no tiles", given, count >= 0, shown),
        Obligation("no row, no tile", given | {"m = 0": m == 0}, count == 0, shown),
        Obligation("no tile is empty", given | {"0 <= x": x >= 0, "x < M": x < count}, x * size < m, shown),
    ]


def _tiles() -> Claim:
    return Claim(
        name="cta-indexing.tiles",
        words="With any tile size t, a group of m rows has ceil(m / t) tiles: each row is in exactly one of them and "
        "none is empty. A group without rows has no tiles.",
        formulas=("M = (m + t - 1) // t >= 0", "0 <= row < m  =>  row // t < M", "0 <= x < M  =>  x t < m"),
        method=Method.Z3,
        check=Questions(tile_obligations),
        preconditions=("m >= 0", "t >= 1"),
        controls=(
            Control(
                "M = m // t, rounded down",
                Questions(lambda z3: tile_obligations(z3, up=False)),
                lambda: "problem 129x128x256 with t = 128: M = 1, and row 128 is in no tile",
            ),
        ),
    )


def host_obligations(z3: Z3, *, device_tile: int | None = None) -> list[Obligation]:
    """The host's sum is P(G), by induction; with ``device_tile``, the host counts with 128 and the device with it."""
    host, device, m, n, n_tile = z3.Ints("S(g) P(g) m n t_n")
    host_tiles, device_tiles, host_rest, device_rest, columns, columns_rest = z3.Ints("M' M r' r N r_n")
    tile, own = z3.Ints("t' t")
    shown = {"m": m, "t of the host": tile, "t of the device": own, "M of the host": host_tiles, "M": device_tiles}
    given = {
        "S(g) = P(g)": host == device,
        "m >= 0": m >= 0,
        "n >= 1": n >= 1,
        "t' >= 1": tile >= 1,
        "t >= 1": own >= 1,
        "t_n >= 1": n_tile >= 1,
        "M' = ceil(m / t')": z3.And(m + tile - 1 == host_tiles * tile + host_rest, host_rest >= 0, host_rest < tile),
        "M = ceil(m / t)": z3.And(m + own - 1 == device_tiles * own + device_rest, device_rest >= 0, device_rest < own),
        "N = ceil(n / t_n)": z3.And(
            n + n_tile - 1 == columns * n_tile + columns_rest, columns_rest >= 0, columns_rest < n_tile
        ),
    }
    if device_tile is None:
        given["the tiles are the same: t' = t"] = tile == own
        counts = {"M' = ceil(m / t')", "M = ceil(m / t)", "the tiles are the same: t' = t", "t' >= 1", "t >= 1"}
        first = {words: formula for words, formula in given.items() if words in counts}
        return [
            Obligation("host and device count the same tiles of M", first, host_tiles == device_tiles, shown),
            Obligation(
                "S(g+1) = P(g+1)",
                {"S(g) = P(g)": given["S(g) = P(g)"], "M' = M": host_tiles == device_tiles},
                host + host_tiles * columns == device + device_tiles * columns,
                shown,
            ),
        ]
    given["t' = 128"] = tile == 128
    given[f"t = {device_tile}"] = own == device_tile
    given["t_n = 128"] = n_tile == 128
    given["n = 128"] = n == 128
    return [Obligation("S(g+1) = P(g+1)", given, host + host_tiles * columns == device + device_tiles * columns, shown)]


def _host_grid() -> Claim:
    return Claim(
        name="cta-indexing.host-grid",
        words="The grid that the host launches is P(G), the sum of all tiles, when host and device round with the same "
        "tile: no CTA too few, none too many.",
        formulas=("S(0) = 0,  S(g+1) = S(g) + ceil(m_g / t') ceil(n_g / t_n)", "t' = t  =>  S(G) = P(G)"),
        method=Method.Z3,
        check=Questions(host_obligations),
        preconditions=("the host's tile t' is the device's tile t, in M and in N", "m_g >= 0, n_g >= 1"),
        controls=(
            Control(
                "the host's M tile is written as 128, the device's mma_tiler[0] is 256",
                Questions(lambda z3: host_obligations(z3, device_tile=256)),
                lambda: "problem 256x128x256: the host launches 2 CTAs for the device's 1 tile",
            ),
            Control(
                "the host's M tile is written as 128, the device's mma_tiler[0] is 64",
                Questions(lambda z3: host_obligations(z3, device_tile=64)),
                lambda: (
                    "problem 128x128x256: the host launches 1 CTA for the device's 2 tiles; rows 64-127 stay unwritten"
                ),
            ),
        ),
    )


# --- rasters ------------------------------------------------------------------------------------------------------


def n_major_obligations(z3: Z3, *, by_m: bool = False) -> list[Obligation]:
    """``place = x * N + y``; with ``by_m``, wrongly, divided by M."""
    m, n, place, x, y, u, v = z3.Ints("M N place x y u v")
    shown = {"M": m, "N": n, "place": place, "x": x, "y": y}
    divisor = m if by_m else n
    inside = {"M >= 0": m >= 0, "N >= 0": n >= 0, "0 <= place": place >= 0, "place < M N": place < m * n}
    split = {"place = x * divisor + y": place == x * divisor + y, "0 <= y": y >= 0, "y < divisor": y < divisor}
    tile = {"0 <= x": x >= 0, "x < M": x < m, "0 <= y": y >= 0, "y < N": y < n}
    return [
        Obligation("the divisor is not 0", inside, n > 0, shown),
        Obligation("the tile exists", inside | split, z3.And(x >= 0, x < m, y >= 0, y < n), shown),
        Obligation("every tile has a place", tile, z3.And(x * n + y >= 0, x * n + y < m * n), shown),
        Obligation(
            "no two tiles share a place",
            {
                "0 <= y": y >= 0,
                "y < N": y < n,
                "0 <= v": v >= 0,
                "v < N": v < n,
                "the places are equal": x * n + y == u * n + v,
            },
            z3.And(x == u, y == v),
            shown | {"u": u, "v": v},
        ),
    ]


def _n_major() -> Claim:
    def by_m(place: int, counts: tuple[int, int]) -> tuple[int, int]:
        return divmod(place, counts[0])

    return Claim(
        name="cta-indexing.n-major",
        words="The N-major raster (y varies fastest) is a bijection of a group's places and tiles, as the M-major one "
        "is: the two differ in the order alone.",
        formulas=("place = x N_g + y,  0 <= x < M_g,  0 <= y < N_g",),
        method=Method.Z3,
        check=Questions(n_major_obligations),
        preconditions=("M_g, N_g >= 0 for every group",),
        controls=(
            Control(
                "N-major divided by M: x = place // M, y = place % M",
                Questions(lambda z3: n_major_obligations(z3, by_m=True)),
                lambda: cta_map.small_failure(cta_map.launched(raster=by_m))[0] or "",
            ),
        ),
    )


# --- groups in another order --------------------------------------------------------------------------------------


def sorted_obligations(z3: Z3, *, permutation: bool = True, through_order: bool = True) -> list[Obligation]:
    """Groups in the order ``o``: position p of the sorted table is group o(p).

    Wrong without ``permutation`` (o need not be one) or ``through_order`` (p is taken for the group).
    """
    order, position = z3.Function("o", z3.IntSort(), z3.IntSort()), z3.Function("p", z3.IntSort(), z3.IntSort())
    count = z3.Function("T", z3.IntSort(), z3.IntSort())
    g, i, j, place = z3.Ints("g i j place")
    first, second, third, other_second, other_third = z3.Ints("Q(i) Q(i+1) Q(i+2) Q'(i+1) Q'(i+2)")
    inverse = {"p(o(i)) = i": position(order(i)) == i, "p(o(j)) = j": position(order(j)) == j}
    group = order(i) if through_order else i
    return [
        Obligation(
            "every group has a position", {"o(p(g)) = g": order(position(g)) == g}, z3.Exists([i], order(i) == g)
        ),
        Obligation(
            "no group has two",
            {"o(i) = o(j)": order(i) == order(j)} | (inverse if permutation else {}),
            i == j,
            {"i": i, "j": j, "o(i)": order(i), "o(j)": order(j)},
        ),
        Obligation(
            "a place of position i is a place of its group",
            {"0 <= place": place >= 0, "place < T(o(i))": place < count(order(i))},
            place < count(group),
            {"i": i, "o(i)": order(i), "place": place, "T(i)": count(i), "T(o(i))": count(order(i))},
        ),
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
    def forgotten(counts: cta_map.Counts) -> list[cta_map.Tile]:
        """The sorted table is searched, and the position is taken for the group."""
        order = sorted(range(len(counts)), key=lambda g: -counts[g][0])
        return cta_map.launched()([counts[g] for g in order])

    def by_value(counts: cta_map.Counts) -> list[cta_map.Tile]:
        """The order is looked up by value, so groups of equal size become one."""
        order = [counts.index(found) for found in sorted(counts, reverse=True)]
        return [(order[g], x, y) for g, x, y in cta_map.launched()([counts[g] for g in order])]

    return Claim(
        name="cta-indexing.sorted-groups",
        words="With the groups in any order o, a permutation, the map over the sorted counts followed by o computes "
        "every tile once, and the grid is the same.",
        formulas=("Q = prefix sums of T(o(0)), T(o(1)), ...", "b -> (o(i), x, y) with Q(i) <= b < Q(i+1)"),
        method=Method.Z3,
        check=Questions(sorted_obligations),
        preconditions=("o is a permutation of 0 .. G-1, its inverse p", "the map's claims, for the counts T(o(i))"),
        controls=(
            Control(
                "o is not a permutation: groups of equal size are looked up by value",
                Questions(lambda z3: sorted_obligations(z3, permutation=False)),
                lambda: cta_map.small_failure(by_value)[0] or "",
            ),
            Control(
                "the position in the sorted table is taken for the group",
                Questions(lambda z3: sorted_obligations(z3, through_order=False)),
                lambda: cta_map.small_failure(forgotten)[0] or "",
            ),
        ),
    )


# --- clusters of two CTAs -----------------------------------------------------------------------------------------


def cluster_obligations(z3: Z3, *, up: bool = True) -> list[Obligation]:
    """Pairs of CTAs along M: H = ceil(M / 2) cluster tiles; without ``up``, wrongly, M // 2."""
    m, n, half, x, y, big, rank, cluster, cta = z3.Ints("M N H x y X rank c b")
    shown = {"M": m, "N": n, "H": half, "x": x, "y": y}
    pairs = z3.And(m <= 2 * half, 2 * half <= m + 1) if up else z3.And(2 * half <= m, m < 2 * half + 2)
    counts = {"M >= 0": m >= 0, "N >= 0": n >= 0, "H = ceil(M / 2)": pairs}
    tile = {"0 <= x": x >= 0, "x < M": x < m, "0 <= y": y >= 0, "y < N": y < n}
    split = {"x = 2 X + rank": x == 2 * big + rank, "rank is 0 or 1": z3.And(rank >= 0, rank <= 1)}
    u, rank_u = z3.Ints("U rank'")
    return [
        Obligation("every tile has its CTA", counts | tile | split, z3.And(big >= 0, big < half), shown),
        Obligation(
            "no two CTAs share a tile",
            split | {"x = 2 U + rank'": x == 2 * u + rank_u, "rank' is 0 or 1": z3.And(rank_u >= 0, rank_u <= 1)},
            z3.And(big == u, rank == rank_u),
            shown,
        ),
        Obligation(
            "a CTA past the group's rows is the odd one's partner",
            counts | split | {"0 <= X": big >= 0, "X < H": big < half, "x >= M": x >= m},
            z3.And(x == m, rank == 1, m == 2 * half - 1),
            shown,
        ),
        Obligation(
            "both CTAs of a cluster have its tile of N and its group",
            {"b = 2 c + rank": cta == 2 * cluster + rank, "rank is 0 or 1": z3.And(rank >= 0, rank <= 1)},
            z3.And(cta / 2 == cluster, cta % 2 == rank),
            {"b": cta, "c": cluster},
        ),
    ]


def paired(counts: cta_map.Counts, *, up: bool = True) -> list[cta_map.Tile]:
    """The tiles that clusters of two along M compute; a partner past the group's rows stores nothing."""
    halves = [((m + 1) // 2 if up else m // 2, n) for m, n in counts]
    done = []
    for group, big, y in cta_map.launched()(halves):
        done += [(group, 2 * big + rank, y) for rank in (0, 1) if 2 * big + rank < counts[group][0]]
    return done


def _crossing(counts: cta_map.Counts) -> str | None:
    """A cluster of neighbouring CTAs of a grid without padding that holds tiles of two groups or two y."""
    done = cta_map.launched()(counts)
    for one, other in zip(done[::2], done[1::2], strict=False):
        if (one[0], one[2]) != (other[0], other[2]):
            return f"problem {cta_map.problem_text(counts)}: one cluster holds the tiles {one} and {other}"
    return None


def crossing_obligations(z3: Z3) -> list[Obligation]:
    """Wrong: neighbours 2c and 2c + 1 of the plain map share their tile of N."""
    m, y, z, x, u, cluster = z3.Ints("M y y' x x' c")
    return [
        Obligation(
            "neighbours have one tile of N",
            {
                "2c = y M + x": z3.And(2 * cluster == y * m + x, x >= 0, x < m, y >= 0),
                "2c + 1 = y' M + x'": z3.And(2 * cluster + 1 == z * m + u, u >= 0, u < m, z >= 0),
            },
            y == z,
            {"M": m, "c": cluster, "y": y, "y'": z},
        )
    ]


def _clusters() -> Claim:
    return Claim(
        name="cta-indexing.clusters",
        words="With clusters of two CTAs along M and ceil(M_g / 2) cluster tiles a group, every tile has exactly one "
        "CTA, a cluster never spans two groups or two tiles of N, and the only CTA without a tile is the second one of "
        "a group's last pair when M_g is odd.",
        formulas=(
            "H_g = ceil(M_g / 2),  grid = 2 sum H_g N_g",
            "c = b // 2 -> (g, X, y) by the map over (H_g, N_g),  x = 2 X + b % 2",
            "x >= M_g  <=>  M_g odd, X = H_g - 1, b odd",
        ),
        method=Method.Z3,
        check=Questions(cluster_obligations),
        preconditions=("a CTA with x >= M_g stores nothing", "the map's claims, for the counts (H_g, N_g)"),
        controls=(
            Control(
                "M_g // 2 cluster tiles, rounded down",
                Questions(lambda z3: cluster_obligations(z3, up=False)),
                lambda: cta_map.small_failure(lambda counts: paired(counts, up=False))[0] or "",
            ),
            Control(
                "neighbours of the plain map, M_g not rounded to pairs, as a cluster",
                Questions(crossing_obligations),
                lambda: next(filter(None, map(_crossing, cta_map.small_counts())), ""),
            ),
        ),
    )


# --- persistent grids ---------------------------------------------------------------------------------------------


def persistent_obligations(z3: Z3, *, start: int = 0) -> list[Obligation]:
    """CTA c of C takes b = c, c + C, ... below P; with ``start`` 1, wrongly, from c + 1."""
    ctas, c, d, i, j, b, total, first = z3.Ints("C c c' i i' b P(G) P(g)")
    shown = {"C": ctas, "c": c, "i": i, "b": b, "P(G)": total}
    number = z3.And(c >= 0, c < ctas)
    takes = {"0 <= c < C": number, "C >= 1": ctas >= 1}
    split = {"b - start = i C + c": b - start == i * ctas + c}
    return [
        Obligation("every tile is taken", takes | {"0 <= b": b >= 0, "b < P(G)": b < total, **split}, i >= 0, shown),
        Obligation(
            "by one CTA, once",
            {
                "0 <= c < C": number,
                "0 <= c' < C": z3.And(d >= 0, d < ctas),
                "the same b": start + i * ctas + c == start + j * ctas + d,
            },
            z3.And(c == d, i == j),
            shown | {"c'": d, "i'": j},
        ),
        Obligation(
            "the loop ends", {"C >= 1": ctas >= 1, "b < P(G)": b < total}, total - (b + ctas) < total - b, shown
        ),
        Obligation(
            "a scan may go on from its last group",
            {"P(g) <= b": first <= b, "C >= 1": ctas >= 1},
            first <= b + ctas,
            shown | {"P(g)": first},
        ),
    ]


def strided(counts: cta_map.Counts, *, ctas: int, start: int = 0) -> list[cta_map.Tile]:
    """The tiles that a persistent grid of ``ctas`` CTAs computes."""
    total = sum(m * n for m, n in counts)
    return [cta_map.placed(counts, b) for c in range(ctas) for b in range(c + start, total, ctas)]


def _persistent() -> Claim:
    return Claim(
        name="cta-indexing.persistent",
        words="A persistent grid of any C >= 1 CTAs, each taking b = c, c + C, c + 2 C, ... below P(G), takes every "
        "tile exactly once; the linear scan may go on from the group of its last tile.",
        formulas=("b = c + i C,  0 <= c < C,  i >= 0,  b < P(G)", "P(g) <= b  =>  P(g) <= b + C"),
        method=Method.Z3,
        check=Questions(persistent_obligations),
        preconditions=("C >= 1, the same for all CTAs", "the map's claims"),
        controls=(
            Control(
                "the first tile of CTA c is c + 1",
                Questions(lambda z3: persistent_obligations(z3, start=1)),
                lambda: f"C = 2, {cta_map.small_failure(lambda counts: strided(counts, ctas=2, start=1))[0]}",
            ),
        ),
    )
