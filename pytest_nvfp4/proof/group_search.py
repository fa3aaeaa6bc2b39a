"""The loops that find a tile's group, proved by induction for any number of groups.

The invariant of the loop holds at the start, a turn keeps it, the loop ends, and the invariant with the exit condition
names the group. P is a function without a definition, of which only the equations that an obligation names are known.
Claims on the map as a whole are in `pytest_nvfp4.proof.cta_indexing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.proof import cta_map
from pytest_nvfp4.proof.solver import Z3, Obligation, Questions, Term
from pytest_nvfp4.proof.statement import Claim, Control, Method

GROUP_FOUND = "P(g) <= b < P(g+1)"


def claims() -> tuple[Claim, ...]:
    """The claims on linear scan, subtracting scan and binary search."""
    return (_scan(), _subtracting_scan(), _binary())


def shown_example(search: cta_map.Search) -> str:
    """The smallest problem on which the map with a wrong search fails."""
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
        preconditions=("0 <= b < P(G)",),
        controls=(
            Control(
                "'b > P(g+1)' in place of 'b >= P(g+1)'",
                Questions(lambda z3: scan_obligations(z3, strict=True)),
                lambda: shown_example(strict),
            ),
        ),
    )


def subtracting_obligations(z3: Z3, *, skips_empty: bool = True) -> list[Obligation]:
    """``g = 0; rest = b; while rest >= T(g): rest -= T(g); g += 1``.

    Wrong without ``skips_empty``: ``rest > T(g)``.
    """
    g, b, rest, first, count, following = z3.Ints("g b rest P(g) T(g) P(g+1)")
    groups, total = z3.Ints("G P(G)")
    shown = {"g": g, "b": b, "G": groups, "rest": rest, "P(g)": first, "T(g)": count}
    again = rest >= count if skips_empty else rest > count
    in_grid = {"b < P(G)": b < total}
    state = {"rest = b - P(g)": rest == b - first, "rest >= 0": rest >= 0, "0 <= g": g >= 0, "g < G": g < groups}
    sums = {
        "P(g+1) = P(g) + T(g)": following == first + count,
        "P(g+1) is P(G) if g+1 is G": z3.Implies(g + 1 == groups, following == total),
    }
    return [
        Obligation(
            "the invariant holds at the start",
            in_grid
            | {
                "0 <= b": b >= 0,
                "G >= 0": groups >= 0,
                "no group, no tile": z3.Implies(groups == 0, total == 0),
                "P(0) = 0": first == 0,
                "g = 0": g == 0,
                "rest = b": rest == b,
            },
            z3.And(rest == b - first, rest >= 0, g >= 0, g < groups),
            shown,
        ),
        Obligation(
            "a turn keeps the invariant",
            state | sums | in_grid | {"the loop goes on": again},
            z3.And(rest - count == b - following, rest - count >= 0, g + 1 >= 0, g + 1 < groups),
            shown,
        ),
        Obligation(
            "the loop ends", {"g < G": g < groups}, z3.And(groups - (g + 1) < groups - g, groups - (g + 1) >= 0), shown
        ),
        Obligation(
            "at the end the group is found",
            state | sums | {"the loop ends": z3.Not(again)},
            z3.And(first <= b, b < following, rest == b - first),
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
        words="For any number of groups and any tile counts, the scan that subtracts each group's tiles, as GPU MODE's "
        "template does, ends at the group of tile b, reads no T behind the last, and leaves the place inside it.",
        formulas=(
            "g = 0; rest = b; while rest >= T(g): rest -= T(g); g += 1",
            f"0 <= b < P(G)  =>  {GROUP_FOUND} and rest = b - P(g) at the end",
        ),
        method=Method.Z3,
        check=Questions(subtracting_obligations),
        preconditions=("0 <= b < P(G)",),
        controls=(
            Control(
                "'rest > T(g)' in place of 'rest >= T(g)'",
                Questions(lambda z3: subtracting_obligations(z3, skips_empty=False)),
                lambda: shown_example(late),
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
        preconditions=("0 <= b < P(G)",),
        controls=(
            Control(
                "'P(middle) < b' in place of 'P(middle) <= b'",
                Questions(lambda z3: binary_obligations(z3, strict=True)),
                lambda: shown_example(strict),
            ),
        ),
    )
