"""The CTA map of a grouped GEMM: for every problem, each output tile is computed by exactly one CTA.

Group g has ``M_g x N_g`` tiles, ``T(g) = M_g * N_g``, ``P(0) = 0`` and ``P(g+1) = P(g) + T(g)``. CTA b of a grid of
P(G) searches for the group with ``P(g) <= b < P(g+1)``; its tile there is ``b - P(g) = y * M_g + x``.

`pytest_nvfp4.proof.group_search` proves the search loops. This module proves that the group is unique, so that all
searches agree, and that CTAs and tiles correspond one to one. Rasters, sorted groups, clusters and persistent grids are
in `pytest_nvfp4.proof.schedules`, 32-bit arithmetic in `pytest_nvfp4.proof.integer_range`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from pytest_nvfp4.proof import cta_map, group_search
from pytest_nvfp4.proof.group_search import GROUP_FOUND
from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Term, between, claim_by_z3, facts
from pytest_nvfp4.proof.statement import CaseResult, Claim, Mistake, claim_by_cases, first_failure

DEFAULT_GROUPS = (1, 2, 3, 4, 5, 8, 16, 32)
"""Numbers of groups for which the searches are compared with every count symbolic."""

COUNTS_GIVEN = "M_g, N_g >= 0 for every group"
"""Precondition of every claim on tile counts."""

SEARCHES: tuple[cta_map.Search, ...] = (cta_map.scan, cta_map.binary)
RASTERS: tuple[cta_map.Raster, ...] = (cta_map.m_major, cta_map.n_major)

stops_early = partial(cta_map.binary, stop_at=2)
"""A wrong binary search: ``while high - low > 2``."""


def claims(groups: Sequence[int] = DEFAULT_GROUPS) -> tuple[Claim, ...]:
    """Return the claims on the map; ``groups`` are the values of G with symbolic counts."""
    return (*group_search.claims(), _unique(), _bijection(), given_groups(groups), _small())


# --- the group and the tile are unique, and every tile has its CTA ------------------------------------------------


def unique_obligations(z3: Z3, *, counts: bool = True) -> list[Obligation]:
    """P does not fall (by induction), so no tile is in two groups; wrong without ``counts``, T >= 0."""
    at_i, at_j, count, b = z3.Ints("P(i) P(j) T(j) b")
    first, following, other, after = z3.Ints("P(g) P(g+1) P(h) P(h+1)")
    return [
        Obligation(
            "P(i) <= P(j) for i <= j, by induction on j",
            facts(at_i <= at_j, *((count >= 0,) if counts else ())),
            at_i <= at_j + count,
            {"P(i)": at_i, "P(j)": at_j, "T(j)": count},
        ),
        Obligation(
            "two groups g < h do not share b",
            facts(first <= b, *between(other, b, after)) | {"P(g+1) <= P(h), as g+1 <= h": following <= other},
            z3.Not(b < following),
            {"b": b, "P(g)": first, "P(g+1)": following, "P(h)": other, "P(h+1)": after},
        ),
    ]


def _unique() -> Claim:
    return claim_by_z3(
        "cta-indexing.unique-group",
        "There is at most one group with P(g) <= b < P(g+1). So all searches that end at such a group agree, whatever "
        "the number of groups, empty groups included.",
        unique_obligations,
        formulas=("i <= j  =>  P(i) <= P(j)", "P(g) <= b < P(g+1) and P(h) <= b < P(h+1)  =>  g = h"),
        given=(COUNTS_GIVEN,),
        controls=(
            Mistake(
                "a group may have a negative number of tiles, as m = -128 gives it",
                {"counts": False},
                "counts T = 3, -2, 2: b = 2 lies in group 0 (P = 0 .. 3) and in group 2 (P = 1 .. 3)",
            ),
        ),
    )


def raster_obligations(z3: Z3, *, n_major: bool = False, swapped: bool = False) -> list[Obligation]:
    """``place = y * M + x``, or ``x * N + y`` if ``n_major``, is a bijection of [0, M N) and the tiles.

    Wrong with ``swapped``: the raster divides by M but takes the quotient for x.
    """
    m, n, place, x, y, u, v = z3.Ints("M N place x y u v")
    shown = {"M": m, "N": n, "place": place, "x": x, "y": y}
    inside = facts(m >= 0, n >= 0, *between(0, place, m * n))
    # Quotient and remainder as variables: z3 decides this in milliseconds, and nested / and % not at all.
    quotient, rest = (x, y) if n_major or swapped else (y, x)
    divisor = n if n_major and not swapped else m
    split = facts(place == quotient * divisor + rest, *between(0, rest, divisor))
    tile = (*between(0, x, m), *between(0, y, n))

    def number(x: Term, y: Term) -> Term:
        return x * n + y if n_major else y * m + x

    fast: tuple[Formula, ...] = (
        (*between(0, y, n), *between(0, v, n)) if n_major else (*between(0, x, m), *between(0, u, m))
    )
    return [
        Obligation("the divisor is not 0", inside, (n if n_major else m) > 0, shown),
        Obligation("the tile exists", inside | split, z3.And(*tile), shown),
        Obligation("every tile has a place", facts(*tile), z3.And(*between(0, number(x, y), m * n)), shown),
        Obligation(
            "no two tiles share a place",
            facts(*fast) | {"the places are equal": number(x, y) == number(u, v)},
            z3.And(x == u, y == v),
            shown | {"u": u, "v": v},
        ),
    ]


def cover_obligations(z3: Z3, *, monotone: bool = True, short: int = 0) -> list[Obligation]:
    """Return every tile's number is in the grid: ``P(g) + place < P(g+1) <= P(G)``.

    Wrong without ``monotone`` (later groups may take tiles away), or with sums that are ``short`` of a group's tiles.
    """
    first, following, total, place, count = z3.Ints("P(g) P(g+1) P(G) place T(g)")
    hypotheses = facts(*between(0, place, count)) | {
        "P(0) <= P(g)": first >= 0,
        "P(g+1) = P(g) + T(g)": following == first + count - short,
    }
    if monotone:
        hypotheses |= facts(following <= total)
    shown = {"P(g)": first, "T(g)": count, "P(g+1)": following, "P(G)": total, "place": place}
    b = first + place
    return [
        Obligation("the tile's number is in the grid", hypotheses, z3.And(*between(0, b, total)), shown),
        Obligation("its group is g", hypotheses, z3.And(*between(first, b, following), b - first == place), shown),
    ]


def _bijection() -> Claim:
    def obligations(z3: Z3, *, swapped: bool = False, monotone: bool = True, short: int = 0) -> list[Obligation]:
        return [*raster_obligations(z3, swapped=swapped), *cover_obligations(z3, monotone=monotone, short=short)]

    return claim_by_z3(
        "cta-indexing.bijection",
        "CTAs and tiles correspond one to one: the map of b is a tile that exists, and every tile (g, x, y) is the map "
        "of b = P(g) + y M_g + x and of no other b.",
        obligations,
        formulas=(
            "b - P(g) = y M_g + x,  0 <= x < M_g,  0 <= y < N_g",
            "(g, x, y) -> P(g) + y M_g + x is a bijection onto [0, P(G))",
        ),
        given=(COUNTS_GIVEN, "the grid is P(G) CTAs"),
        controls=(
            Mistake(
                "x and y exchanged: x = place // M, y = place % M",
                {"swapped": True},
                cta_map.example(cta_map.launched(raster=cta_map.divided_by_m)),
            ),
            Mistake(
                "prefix sums that are one tile short: P(g+1) = P(g) + T(g) - 1",
                {"short": 1},
                cta_map.example(_short_sums),
            ),
            Mistake(
                "P may fall behind group g, as a negative tile count makes it",
                {"monotone": False},
                "counts T = 3, -2: P(G) = 1, and tiles 1 and 2 of group 0 have no CTA",
            ),
        ),
    )


def _short_sums(counts: cta_map.Counts) -> list[cta_map.OutputTile]:
    """Return the tiles of a grid whose prefix sums count one tile of each group too few."""
    first = cta_map.prefix_sums([max(0, m * n - 1) for m, n in counts])
    done = []
    for b in range(first[-1]):
        group = cta_map.binary(first, b, cta_map.decide)
        done.append(cta_map.OutputTile(group, *cta_map.m_major(b - first[group], counts[group])))
    return done


# --- given numbers of groups, every count symbolic ----------------------------------------------------------------


def agreement_obligations(z3: Z3, groups: Sequence[int], search: cta_map.Search = cta_map.binary) -> list[Obligation]:
    """Return the search's decision tree equals the scan's and the definition, for each G."""
    obligations = []

    def choose(condition: Any, yes: Any, no: Any) -> Term:
        return z3.If(condition, yes(), no())

    for count in groups:
        first = [z3.IntVal(0), *(z3.Int(f"P({g + 1})") for g in range(count))]
        b = z3.Int("b")
        hypotheses = facts(*(first[g] <= first[g + 1] for g in range(count)), *between(0, b, first[-1]))
        group = search(first, b, choose)
        inside = z3.Or(*(z3.And(group == g, *between(first[g], b, first[g + 1])) for g in range(count)))
        shown = {"b": b} | {f"P({g + 1})": first[g + 1] for g in range(count)}
        agree = cta_map.scan(first, b, choose) == group
        obligations += [
            Obligation(f"G = {count}: scan and binary search agree", hypotheses, agree, shown),
            Obligation(f"G = {count}: the group holds b", hypotheses, inside, shown),
        ]
    return obligations


def given_groups(groups: Sequence[int]) -> Claim:
    """Return the claim on given numbers of groups. Raises ValueError for an empty list or a number below 1."""
    if not groups or min(groups) < 1:
        raise ValueError(f"numbers of groups {list(groups)}: give at least one, each at least 1")
    shown = ", ".join(map(str, groups))
    return claim_by_z3(
        "cta-indexing.given-groups",
        f"For G = {shown} groups and any tile counts, scan and binary search, unrolled to decision trees, give the "
        "same group, and it holds tile b.",
        partial(agreement_obligations, groups=groups),
        formulas=(f"0 <= b < P(G)  =>  scan(b) = search(b) = g with {GROUP_FOUND}",),
        given=("0 <= b < P(G)", COUNTS_GIVEN),
        controls=(
            Mistake(
                "the binary search stops at two groups: 'while high - low > 2'",
                {"groups": [min(4, max(2, *groups))], "search": stops_early},
                cta_map.example(cta_map.launched(stops_early)),
            ),
        ),
    )


def _small() -> Claim:
    def look(*, searches: Sequence[cta_map.Search] = SEARCHES) -> CaseResult:
        return first_failure(
            cta_map.small_failure(cta_map.launched(search, raster)) for search, raster in product(searches, RASTERS)
        )

    return claim_by_cases(
        "cta-indexing.small-problems",
        "On every problem of up to three groups with up to 3 x 2 tiles each (a group may have no rows), both searches "
        "with both rasters compute every tile once.",
        look,
        "problems",
        formulas=("{map(b) : 0 <= b < P(G)} = {(g, x, y) : 0 <= x < M_g, 0 <= y < N_g}, each once",),
        controls=(Mistake("the binary search stops at two groups", {"searches": (stops_early,)}),),
    )


# --- one problem --------------------------------------------------------------------------------------------------

MOST_TILES = 200_000
"""Largest number of tiles of a problem that is enumerated."""


def on_problem(name: str, sizes: Sequence[tuple[int, int]], *, tile_m: int = 128, tile_n: int = 128) -> Claim:
    """Return the claim that the CTAs of one problem, groups (m, n), compute every tile once.

    Raises:
        ValueError: the problem has more than `MOST_TILES` tiles.
    """
    counts = [(-(-m // tile_m), -(-n // tile_n)) for m, n in sizes]
    total = sum(m * n for m, n in counts)
    if total > MOST_TILES:
        raise ValueError(f"problem {name}: {total} tiles are more than the {MOST_TILES} that are enumerated")

    def run(work: cta_map.Work) -> CaseResult:
        wrong = cta_map.small_failure(work, iter([counts])).counterexample
        return CaseResult(None if wrong is None else wrong.partition(": ")[2], total)

    def look(*, missing: int = 0) -> CaseResult:
        if missing:
            return run(lambda counts: cta_map.launched()(counts)[:-missing])
        return first_failure(run(cta_map.launched(search, raster)) for search, raster in product(SEARCHES, RASTERS))

    return claim_by_cases(
        f"cta-indexing.problem.{name}",
        f"Problem {name} has {total} tiles of {tile_m} x {tile_n}; a grid of {total} CTAs computes each once, with "
        "either search and either raster.",
        look,
        "CTAs",
        formulas=(f"P = {', '.join(map(str, cta_map.prefix_sums([m * n for m, n in counts])))}",),
        controls=(Mistake("a grid of one CTA too few", {"missing": 1}),) if total else (),
    )
