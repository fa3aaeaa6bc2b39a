"""The CTA map of a grouped GEMM: for every problem, each output tile is computed by exactly one CTA.

Group g has ``M_g x N_g`` tiles, ``T(g) = M_g * N_g``, ``P(0) = 0`` and ``P(g+1) = P(g) + T(g)``. CTA b of a grid of
P(G) looks for the group with ``P(g) <= b < P(g+1)``, and its tile there is ``b - P(g) = y * M_g + x``.

For an unbounded number of groups the search is proved by induction: the invariant of its loop holds at the start, is
kept by a turn, the loop ends, and the invariant with the exit condition names the group; the group is unique. P is a
function without a definition, of which only the equations that an obligation names are known. Rasters, sorting,
clusters and persistent grids are in `pytest_nvfp4.proof.schedules`, 32-bit arithmetic in
`pytest_nvfp4.proof.integer_range`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.proof import cta_map
from pytest_nvfp4.proof.solver import Z3, Obligation, Questions, Term
from pytest_nvfp4.proof.statement import Cases, Claim, Control, Method

DEFAULT_GROUPS = (1, 2, 3, 4, 5, 8, 16, 32)
"""Numbers of groups for which the searches are compared with every count symbolic."""

GROUP_FOUND = "P(g) <= b < P(g+1)"


def claims(groups: Sequence[int] = DEFAULT_GROUPS) -> tuple[Claim, ...]:
    """The claims on the map itself; ``groups`` are the G of the claim on given numbers of groups."""
    return (_scan(), _subtracting_scan(), _binary(), _unique(), _cover(), given_groups(groups), _small())


# --- loops, for any number of groups ------------------------------------------------------------------------------


def _shown_example(search: cta_map.Search) -> str:
    found, _ = cta_map.small_failure(cta_map.launched(search))
    return found or ""


def scan_obligations(z3: Z3, *, strict: bool = False) -> list[Obligation]:
    """``g = 0; while b >= P(g+1): g += 1``; with ``strict``, wrongly, ``while b > P(g+1)``."""
    g, b, groups, first, following, total = z3.Ints("g b G P(g) P(g+1) P(G)")
    shown = {"g": g, "b": b, "G": groups, "P(g)": first, "P(g+1)": following}
    again = b > following if strict else b >= following
    in_grid = {"0 <= b": b >= 0, "b < P(G)": b < total}
    invariant = {"0 <= g": g >= 0, "g < G": g < groups, "P(g) <= b": first <= b}
    last = {"P(g+1) is P(G) if g+1 is G": z3.Implies(g + 1 == groups, following == total)}
    return [
        Obligation(
            "the invariant holds at the start",
            in_grid
            | {
                "G >= 0": groups >= 0,
                "P(0) = 0": first == 0,
                "no group, no tile": z3.Implies(groups == 0, total == 0),
                "g = 0": g == 0,
            },
            z3.And(g >= 0, g < groups, first <= b),
            shown,
        ),
        Obligation(
            "a turn keeps the invariant",
            {"b < P(G)": in_grid["b < P(G)"], **invariant, **last, "the loop goes on": again},
            z3.And(g + 1 >= 0, g + 1 < groups, following <= b),
            shown,
        ),
        Obligation(
            "P is read inside the table",
            {"g < G": g < groups, "0 <= g": g >= 0},
            z3.And(g + 1 >= 1, g + 1 <= groups),
            shown,
        ),
        Obligation(
            "the loop ends", {"g < G": g < groups}, z3.And(groups - (g + 1) < groups - g, groups - (g + 1) >= 0), shown
        ),
        Obligation(
            "at the end the group is found",
            {**invariant, "the loop ends": z3.Not(again)},
            z3.And(first <= b, b < following),
            shown,
        ),
    ]


def _scan() -> Claim:
    def strict(first: Sequence[Term], b: Term, choose: cta_map.Choose, group: int = 0) -> Term:
        if group + 2 == len(first):
            return group
        return choose(b > first[group + 1], lambda: strict(first, b, choose, group + 1), lambda: group)

    return Claim(
        name="cta-indexing.scan",
        words="For any number of groups and any tile counts, the linear scan ends at the group of tile b, and reads P "
        "inside its table only.",
        formulas=("g = 0; while b >= P(g+1): g += 1", f"0 <= b < P(G)  =>  {GROUP_FOUND} at the end, 0 <= g < G"),
        method=Method.Z3,
        check=Questions(scan_obligations),
        preconditions=("0 <= b < P(G)", "M_g, N_g >= 0 for every group"),
        controls=(
            Control(
                "'b > P(g+1)' in place of 'b >= P(g+1)'",
                Questions(lambda z3: scan_obligations(z3, strict=True)),
                lambda: _shown_example(strict),
            ),
        ),
    )


def subtracting_obligations(z3: Z3, *, skips_empty: bool = True) -> list[Obligation]:
    """``g = 0; rest = b; while rest >= T(g): rest -= T(g); g += 1``.

    Wrong without ``skips_empty``: ``rest > T(g)``.
    """
    g, b, rest, first, count, following = z3.Ints("g b rest P(g) T(g) P(g+1)")
    shown = {"b": b, "rest": rest, "P(g)": first, "T(g)": count}
    again = rest >= count if skips_empty else rest > count
    state = {"rest = b - P(g)": rest == b - first, "rest >= 0": rest >= 0}
    sums = {"P(g+1) = P(g) + T(g)": following == first + count}
    return [
        Obligation(
            "the invariant holds at the start",
            {"b >= 0": b >= 0, "P(0) = 0": first == 0, "rest = b": rest == b},
            z3.And(rest == b - first, rest >= 0),
            shown,
        ),
        Obligation(
            "a turn keeps the invariant",
            state | sums | {"the loop goes on": again},
            z3.And(rest - count == b - following, rest - count >= 0),
            shown,
        ),
        Obligation(
            "at the end the group is found",
            state | sums | {"the loop ends": z3.Not(again)},
            z3.And(first <= b, b < following, rest == b - first),
            shown,
        ),
        Obligation(
            "it does not pass the last group",
            state
            | sums
            | {
                "g >= 0": g >= 0,
                "the loop goes on": again,
                "b < P(G)": b < z3.Int("P(G)"),
                "P(g+1) is P(G) if g+1 is G": z3.Implies(g + 1 == z3.Int("G"), following == z3.Int("P(G)")),
                "g < G": g < z3.Int("G"),
            },
            g + 1 < z3.Int("G"),
            shown,
        ),
    ]


def _subtracting_scan() -> Claim:
    def late(first: Sequence[Term], b: Term, choose: cta_map.Choose) -> Term:
        group, rest = 0, b
        while group + 2 < len(first) and rest > first[group + 1] - first[group]:
            rest -= first[group + 1] - first[group]
            group += 1
        return choose(True, lambda: group, lambda: group)

    return Claim(
        name="cta-indexing.subtracting-scan",
        words="The scan that subtracts each group's tiles, as GPU MODE's template does, ends at the same group and "
        "leaves the place inside it.",
        formulas=(
            "g = 0; rest = b; while rest >= T(g): rest -= T(g); g += 1",
            f"0 <= b < P(G)  =>  {GROUP_FOUND} and rest = b - P(g) at the end",
        ),
        method=Method.Z3,
        check=Questions(subtracting_obligations),
        preconditions=("0 <= b < P(G)", "M_g, N_g >= 0 for every group"),
        controls=(
            Control(
                "'rest > T(g)' in place of 'rest >= T(g)'",
                Questions(lambda z3: subtracting_obligations(z3, skips_empty=False)),
                lambda: _shown_example(late),
            ),
        ),
    )


def binary_obligations(z3: Z3, *, strict: bool = False) -> list[Obligation]:
    """The binary search; with ``strict``, wrongly, ``P(middle) < b``."""
    low, high, middle, groups, b = z3.Ints("low high middle G b")
    at_low, at_middle, at_high, total = z3.Ints("P(low) P(middle) P(high) P(G)")
    shown = {"b": b, "low": low, "middle": middle, "high": high, "P(middle)": at_middle}
    left = at_middle < b if strict else at_middle <= b
    order = {"0 <= low": low >= 0, "low < high": low < high, "high <= G": high <= groups}
    invariant = {"P(low) <= b": at_low <= b, "b < P(high)": b < at_high}
    half = {"middle is half": z3.And(2 * middle <= low + high, low + high < 2 * middle + 2)}
    on = {"the loop goes on": high - low > 1}
    return [
        Obligation(
            "the invariant holds at the start",
            {
                "0 <= b": b >= 0,
                "b < P(G)": b < total,
                "P(0) = 0": at_low == 0,
                "low = 0": low == 0,
                "high = G": z3.And(high == groups, at_high == total),
                "G >= 0": groups >= 0,
                "no group, no tile": z3.Implies(groups == 0, total == 0),
            },
            z3.And(low >= 0, low < high, high <= groups, at_low <= b, b < at_high),
            shown,
        ),
        Obligation("P is read inside the table", order | half | on, z3.And(middle >= 0, middle < groups), shown),
        Obligation(
            "a turn keeps the invariant",
            order | invariant | half | on,
            z3.And(
                z3.Implies(left, z3.And(middle >= 0, middle < high, at_middle <= b, b < at_high)),
                z3.Implies(z3.Not(left), z3.And(low < middle, middle <= groups, at_low <= b, b < at_middle)),
            ),
            shown,
        ),
        Obligation(
            "the loop ends", order | half | on, z3.And(high - middle < high - low, middle - low < high - low), shown
        ),
        Obligation(
            "at the end the group is found",
            {"low < high": low < high, **invariant, "the loop ends": high - low <= 1},
            z3.And(high == low + 1, at_low <= b, b < at_high),
            shown,
        ),
    ]


def _binary() -> Claim:
    def strict(first: Sequence[Term], b: Term, choose: cta_map.Choose, low: int = 0, high: int | None = None) -> Term:
        high = len(first) - 1 if high is None else high
        if high - low <= 1:
            return low
        middle = (low + high) // 2
        return choose(
            first[middle] < b,
            lambda: strict(first, b, choose, middle, high),
            lambda: strict(first, b, choose, low, middle),
        )

    return Claim(
        name="cta-indexing.binary-search",
        words="For any number of groups and any tile counts, the binary search over the prefix sums ends at the group "
        "of tile b, and reads rows 1 .. G-1 of the table only.",
        formulas=(
            "low, high = 0, G; while high - low > 1: middle = (low + high) // 2;",
            "    if P(middle) <= b: low = middle else: high = middle",
            "0 <= b < P(G)  =>  P(low) <= b < P(low+1) at the end, 0 <= low < G",
        ),
        method=Method.Z3,
        check=Questions(binary_obligations),
        preconditions=("0 <= b < P(G)", "M_g, N_g >= 0 for every group"),
        controls=(
            Control(
                "'P(middle) < b' in place of 'P(middle) <= b'",
                Questions(lambda z3: binary_obligations(z3, strict=True)),
                lambda: _shown_example(strict),
            ),
        ),
    )


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


def cover_obligations(z3: Z3, *, monotone: bool = True) -> list[Obligation]:
    """Every tile's number is in the grid: ``P(g) + place < P(g+1) <= P(G)``."""
    first, following, total, place, count = z3.Ints("P(g) P(g+1) P(G) place T(g)")
    hypotheses = {
        "P(0) <= P(g)": first >= 0,
        "P(g+1) = P(g) + T(g)": following == first + count,
        "0 <= place": place >= 0,
        "place < T(g)": place < count,
    }
    if monotone:
        hypotheses["P(g+1) <= P(G)"] = following <= total
    shown = {"P(g)": first, "P(G)": total, "place": place}
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
        ),
    )


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
                lambda: _shown_example(stops_early),
            ),
        ),
    )


def _small() -> Claim:
    def both() -> tuple[str | None, int]:
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

    def look(work: cta_map.Work) -> tuple[str | None, int]:
        wrong, _ = cta_map.small_failure(work, iter([counts]))
        return (None if wrong is None else wrong.partition(": ")[2]), total

    def both() -> tuple[str | None, int]:
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
