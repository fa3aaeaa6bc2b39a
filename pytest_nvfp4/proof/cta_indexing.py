"""The CTA map of a grouped GEMM: for every problem, each output tile is computed by exactly one CTA.

Group g has ``M_g x N_g`` tiles, ``T(g) = M_g * N_g``, ``P(0) = 0`` and ``P(g+1) = P(g) + T(g)``. CTA b of a grid of
P(G) looks for the group with ``P(g) <= b < P(g+1)``, and its tile there is ``b - P(g) = y * M_g + x``.

The loops that search are proved in `pytest_nvfp4.proof.group_search`; here, that the group is unique, so that they
agree, and that CTAs and tiles correspond one to one. Rasters, sorting, clusters and persistent grids are in
`pytest_nvfp4.proof.schedules`, 32-bit arithmetic in `pytest_nvfp4.proof.integer_range`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.proof import cta_map, group_search
from pytest_nvfp4.proof.group_search import GROUP_FOUND, shown_example
from pytest_nvfp4.proof.solver import Z3, Obligation, Questions, Term
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Look, Method

DEFAULT_GROUPS = (1, 2, 3, 4, 5, 8, 16, 32)
"""Numbers of groups for which the searches are compared with every count symbolic."""


def claims(groups: Sequence[int] = DEFAULT_GROUPS) -> tuple[Claim, ...]:
    """The claims on the map itself; ``groups`` are the G of the claim on given numbers of groups."""
    return (*group_search.claims(), _unique(), _cover(), given_groups(groups), _small())


# --- the group and the tile are unique, and every tile has its CTA ------------------------------------------------


def unique_obligations(z3: Z3, *, counts: bool = True) -> list[Obligation]:
    """P does not fall (by induction), so no tile is in two groups. Without ``counts >= 0`` it is wrong."""
    at_i, at_j, count, b = z3.Ints("P(i) P(j) T(j) b")
    first, following, other, after = z3.Ints("P(g) P(g+1) P(h) P(h+1)")
    positive = {"T(j) >= 0": count >= 0} if counts else {}
    return [
        Obligation(
            "P(i) <= P(j) for i <= j, by induction on j",
            {"P(i) <= P(j)": at_i <= at_j} | positive,
            at_i <= at_j + count,
            {"P(i)": at_i, "P(j)": at_j, "T(j)": count},
        ),
        Obligation(
            "two groups g < h do not share b",
            {
                "P(g) <= b": first <= b,
                "P(g+1) <= P(h), as g+1 <= h": following <= other,
                "P(h) <= b": other <= b,
                "b < P(h+1)": b < after,
            },
            z3.Not(b < following),
            {"b": b, "P(g)": first, "P(g+1)": following, "P(h)": other, "P(h+1)": after},
        ),
    ]


def _unique() -> Claim:
    return Claim(
        name="cta-indexing.unique-group",
        words="There is at most one group with P(g) <= b < P(g+1). So all searches that end at such a group agree, "
        "whatever the number of groups, empty groups included.",
        formulas=("i <= j  =>  P(i) <= P(j)", "P(g) <= b < P(g+1) and P(h) <= b < P(h+1)  =>  g = h"),
        method=Method.Z3,
        check=Questions(unique_obligations),
        preconditions=("M_g, N_g >= 0 for every group",),
        controls=(
            Control(
                "a group may have a negative number of tiles, as m = -128 gives it",
                Questions(lambda z3: unique_obligations(z3, counts=False)),
                lambda: "counts T = 3, -2, 2: b = 2 lies in group 0 (P = 0 .. 3) and in group 2 (P = 1 .. 3)",
            ),
        ),
    )


def raster_obligations(z3: Z3, *, swapped: bool = False) -> list[Obligation]:
    """``place = y * M + x`` is a bijection of [0, M N) and the tiles; with ``swapped``, x and y change places."""
    m, n, place, x, y, u, v = z3.Ints("M N place x y u v")
    shown = {"M": m, "N": n, "place": place, "x": x, "y": y}
    counts = {"M >= 0": m >= 0, "N >= 0": n >= 0}
    inside = {"0 <= place": place >= 0, "place < M N": place < m * n}
    # Quotient and remainder as variables: z3 decides this in milliseconds, and nested / and % not at all.
    quotient, rest = (x, y) if swapped else (y, x)
    split = {"place = quotient * M + rest": place == quotient * m + rest, "0 <= rest": rest >= 0, "rest < M": rest < m}
    tile = {"0 <= x": x >= 0, "x < M": x < m, "0 <= y": y >= 0, "y < N": y < n}
    other = {"0 <= u": u >= 0, "u < M": u < m}
    return [
        Obligation("the divisor is not 0", {"N >= 0": n >= 0, "M >= 0": m >= 0, **inside}, m > 0, shown),
        Obligation("the tile exists", counts | inside | split, z3.And(x >= 0, x < m, y >= 0, y < n), shown),
        Obligation("every tile has a place", tile, z3.And(y * m + x >= 0, y * m + x < m * n), shown),
        Obligation(
            "no two tiles share a place",
            {"0 <= x": x >= 0, "x < M": x < m} | other | {"the places are equal": y * m + x == v * m + u},
            z3.And(x == u, y == v),
            shown | {"u": u, "v": v},
        ),
    ]


def cover_obligations(z3: Z3, *, monotone: bool = True, short: int = 0) -> list[Obligation]:
    """Every tile's number is in the grid: ``P(g) + place < P(g+1) <= P(G)``.

    Wrong without ``monotone`` (groups behind may take tiles away), or with sums that are ``short`` of a group's tiles.
    """
    first, following, total, place, count = z3.Ints("P(g) P(g+1) P(G) place T(g)")
    hypotheses = {
        "P(0) <= P(g)": first >= 0,
        "P(g+1) = P(g) + T(g)": following == first + count - short,
        "0 <= place": place >= 0,
        "place < T(g)": place < count,
    }
    if monotone:
        hypotheses["P(g+1) <= P(G)"] = following <= total
    shown = {"P(g)": first, "T(g)": count, "P(g+1)": following, "P(G)": total, "place": place}
    b = first + place
    return [
        Obligation("the tile's number is in the grid", hypotheses, z3.And(b >= 0, b < total), shown),
        Obligation("its group is g", hypotheses, z3.And(first <= b, b < following, b - first == place), shown),
    ]


def _cover() -> Claim:
    return Claim(
        name="cta-indexing.bijection",
        words="CTAs and tiles correspond one to one: the map of b is a tile that exists, every tile (g, x, y) is the "
        "map of b = P(g) + y M_g + x and of no other b.",
        formulas=(
            "b - P(g) = y M_g + x,  0 <= x < M_g,  0 <= y < N_g",
            "(g, x, y) -> P(g) + y M_g + x is a bijection onto [0, P(G))",
        ),
        method=Method.Z3,
        check=Questions(lambda z3: [*raster_obligations(z3), *cover_obligations(z3)]),
        preconditions=("M_g, N_g >= 0 for every group", "the grid is P(G) CTAs"),
        controls=(
            Control(
                "x and y exchanged: x = place // M, y = place % M",
                Questions(lambda z3: raster_obligations(z3, swapped=True)),
                lambda: (
                    cta_map.small_failure(cta_map.launched(raster=lambda place, counts: divmod(place, counts[0])))[0]
                    or ""
                ),
            ),
            Control(
                "prefix sums that are one tile short: P(g+1) = P(g) + T(g) - 1",
                Questions(lambda z3: cover_obligations(z3, short=1)),
                lambda: cta_map.small_failure(_short_sums)[0] or "",
            ),
            Control(
                "P may fall behind group g, as a negative tile count makes it",
                Questions(lambda z3: cover_obligations(z3, monotone=False)),
                lambda: "counts T = 3, -2: P(G) = 1, and tiles 1 and 2 of group 0 have no CTA",
            ),
        ),
    )


def _short_sums(counts: cta_map.Counts) -> list[cta_map.Tile]:
    """The tiles of a grid whose prefix sums count one tile of each group too few."""
    first = cta_map.prefix_sums([max(0, m * n - 1) for m, n in counts])
    done = []
    for b in range(first[-1]):
        group = cta_map.binary(first, b, cta_map.decide)
        done.append((group, *cta_map.m_major(b - first[group], counts[group])))
    return done


# --- given numbers of groups, every count symbolic ----------------------------------------------------------------


def agreement_obligations(z3: Z3, groups: Sequence[int], search: cta_map.Search = cta_map.binary) -> list[Obligation]:
    """The search's decision tree against the scan's and against the definition, for each G."""
    found = []

    def choose(condition: Any, yes: Any, no: Any) -> Term:
        return z3.If(condition, yes(), no())

    for count in groups:
        first = [z3.IntVal(0), *(z3.Int(f"P({g + 1})") for g in range(count))]
        b = z3.Int("b")
        hypotheses = {f"P({g}) <= P({g + 1})": first[g] <= first[g + 1] for g in range(count)}
        hypotheses |= {"0 <= b": b >= 0, "b < P(G)": b < first[-1]}
        group = search(first, b, choose)
        inside = z3.Or(*(z3.And(group == g, first[g] <= b, b < first[g + 1]) for g in range(count)))
        shown = {"b": b} | {f"P({g + 1})": first[g + 1] for g in range(count)}
        found += [
            Obligation(
                f"G = {count}: scan and binary search agree", hypotheses, cta_map.scan(first, b, choose) == group, shown
            ),
            Obligation(f"G = {count}: the group holds b", hypotheses, inside, shown),
        ]
    return found


def stops_early(first: Sequence[Term], b: Term, choose: cta_map.Choose, low: int = 0, high: int | None = None) -> Term:
    """A wrong binary search: ``while high - low > 2``."""
    high = len(first) - 1 if high is None else high
    if high - low <= 2:
        return low
    middle = (low + high) // 2
    return choose(
        first[middle] <= b,
        lambda: stops_early(first, b, choose, middle, high),
        lambda: stops_early(first, b, choose, low, middle),
    )


def given_groups(groups: Sequence[int]) -> Claim:
    """The claim on given numbers of groups. Raises ValueError for one below 1, or none."""
    if not groups or min(groups) < 1:
        raise ValueError(f"numbers of groups {list(groups)}: give at least one, each at least 1")
    shown = ", ".join(map(str, groups))
    return Claim(
        name="cta-indexing.given-groups",
        words=f"For G = {shown} groups and any tile counts, scan and binary search, written out as the decisions they "
        "make, give the same group, and it holds tile b.",
        formulas=(f"0 <= b < P(G)  =>  scan(b) = search(b) = g with {GROUP_FOUND}",),
        method=Method.Z3,
        check=Questions(lambda z3: agreement_obligations(z3, groups)),
        preconditions=("0 <= b < P(G)", "M_g, N_g >= 0 for every group"),
        controls=(
            Control(
                "the binary search stops at two groups: 'while high - low > 2'",
                Questions(lambda z3: agreement_obligations(z3, [min(4, max(2, *groups))], stops_early)),
                lambda: shown_example(stops_early),
            ),
        ),
    )


def _small() -> Claim:
    def both() -> Look:
        total = 0
        for search in (cta_map.scan, cta_map.binary):
            for raster in (cta_map.m_major, cta_map.n_major):
                wrong, looked = cta_map.small_failure(cta_map.launched(search, raster))
                total += looked
                if wrong is not None:
                    return wrong, total
        return None, total

    return Claim(
        name="cta-indexing.small-problems",
        words="On every problem of up to three groups with up to 3 x 2 tiles each (a group may have no rows), both "
        "searches with both rasters compute every tile once.",
        formulas=("{map(b) : 0 <= b < P(G)} = {(g, x, y) : 0 <= x < M_g, 0 <= y < N_g}, each once",),
        method=Method.EXHAUSTIVE,
        check=Cases(both, "problems"),
        controls=(
            Control(
                "the binary search stops at two groups",
                Cases(lambda: cta_map.small_failure(cta_map.launched(stops_early)), "problems"),
            ),
        ),
    )


# --- one problem --------------------------------------------------------------------------------------------------

MOST_TILES = 200_000
"""Tiles of a problem that are still enumerated."""


def on_problem(name: str, sizes: Sequence[tuple[int, int]], *, tile_m: int = 128, tile_n: int = 128) -> Claim:
    """The claim that every CTA of one problem, groups (m, n), computes a tile of its own, and all are computed.

    Raises:
        ValueError: more tiles than are enumerated.
    """
    counts = [(-(-m // tile_m), -(-n // tile_n)) for m, n in sizes]
    total = sum(m * n for m, n in counts)
    if total > MOST_TILES:
        raise ValueError(f"problem {name}: {total} tiles are more than the {MOST_TILES} that are enumerated")

    def look(work: cta_map.Work) -> Look:
        wrong, _ = cta_map.small_failure(work, iter([counts]))
        return (None if wrong is None else wrong.partition(": ")[2]), total

    def both() -> Look:
        rasters = (cta_map.m_major, cta_map.n_major)
        found = (
            look(cta_map.launched(search, raster)) for search in (cta_map.scan, cta_map.binary) for raster in rasters
        )
        return next((result for result in found if result[0] is not None), (None, 4 * total))

    def short(counts: cta_map.Counts) -> list[cta_map.Tile]:
        return cta_map.launched()(counts)[:-1]

    return Claim(
        name=f"cta-indexing.problem.{name}",
        words=f"Problem {name} has {total} tiles of {tile_m} x {tile_n}; a grid of {total} CTAs computes each once, "
        "with either search and either raster.",
        formulas=(f"P = {', '.join(map(str, cta_map.prefix_sums([m * n for m, n in counts])))}",),
        method=Method.EXHAUSTIVE,
        check=Cases(both, "CTAs"),
        controls=(Control("a grid of one CTA too few", Cases(lambda: look(short), "CTAs")),) if total else (),
    )
