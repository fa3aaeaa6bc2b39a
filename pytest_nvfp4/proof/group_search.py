"""The loops that find a tile's group, proved by induction for any number of groups.

Each loop has an invariant that holds at the start and after every iteration; the loop ends, and the invariant with the
exit condition identifies the group. P is an uninterpreted function: only the equations that an obligation names hold.
Claims on the map as a whole are in `pytest_nvfp4.proof.cta_indexing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytest_nvfp4.proof import cta_map
from pytest_nvfp4.proof.solver import Z3, Obligation, Term, between, claim_by_z3, facts
from pytest_nvfp4.proof.statement import Claim, Mistake

GROUP_FOUND = "P(g) <= b < P(g+1)"


def claims() -> tuple[Claim, ...]:
    """Return the claims on linear scan, subtracting scan and binary search."""
    return (_scan(), _subtracting_scan(), _binary())


def scan_obligations(z3: Z3, *, strict: bool = False) -> list[Obligation]:
    """Obligations of ``g = 0; while b >= P(g+1): g += 1``; with ``strict``, wrongly, ``while b > P(g+1)``."""
    g, b, groups, first, following, total = z3.Ints("g b G P(g) P(g+1) P(G)")
    shown = {"g": g, "b": b, "G": groups, "P(g)": first, "P(g+1)": following}
    again = b > following if strict else b >= following
    invariant = facts(*between(0, g, groups), first <= b)
    last = {"P(g+1) is P(G) if g+1 is G": z3.Implies(g + 1 == groups, following == total)}
    return [
        Obligation(
            "the invariant holds at the start",
            facts(*between(0, b, total), groups >= 0, g == 0)
            | {"P(0) = 0": first == 0, "no group, no tile": z3.Implies(groups == 0, total == 0)},
            z3.And(*between(0, g, groups), first <= b),
            shown,
        ),
        Obligation(
            "an iteration keeps the invariant",
            facts(b < total) | invariant | last | {"the loop continues": again},
            z3.And(*between(0, g + 1, groups), following <= b),
            shown,
        ),
        Obligation(
            "P is read inside the table", facts(*between(0, g, groups)), z3.And(g + 1 >= 1, g + 1 <= groups), shown
        ),
        _scan_ends(z3),
        Obligation(
            "at the end the group is found",
            invariant | {"the loop ends": z3.Not(again)},
            z3.And(*between(first, b, following)),
            shown,
        ),
    ]


def _scan_ends(z3: Z3) -> Obligation:
    """Termination: the number of groups left falls with every iteration and stays at least 0."""
    g, groups = z3.Ints("g G")
    decreases = z3.And(groups - (g + 1) < groups - g, groups - (g + 1) >= 0)
    return Obligation("the loop ends", facts(g < groups), decreases, {"g": g, "G": groups})


def _scan() -> Claim:
    return claim_by_z3(
        "cta-indexing.scan",
        "For any number of groups and any tile counts, the linear scan ends at the group of tile b and reads P inside "
        "its table only.",
        scan_obligations,
        formulas=("g = 0; while b >= P(g+1): g += 1", f"0 <= b < P(G)  =>  {GROUP_FOUND} at the end, 0 <= g < G"),
        given=("0 <= b < P(G)",),
        controls=(
            Mistake(
                "'b > P(g+1)' in place of 'b >= P(g+1)'",
                {"strict": True},
                cta_map.example(cta_map.launched(partial(cta_map.scan, strict=True))),
            ),
        ),
    )


def subtracting_obligations(z3: Z3, *, skips_empty: bool = True) -> list[Obligation]:
    """Obligations of ``g = 0; rest = b; while rest >= T(g): rest -= T(g); g += 1``.

    Wrong without ``skips_empty``: ``rest > T(g)``.
    """
    g, b, rest, first, count, following = z3.Ints("g b rest P(g) T(g) P(g+1)")
    groups, total = z3.Ints("G P(G)")
    shown = {"g": g, "b": b, "G": groups, "rest": rest, "P(g)": first, "T(g)": count}
    again = rest >= count if skips_empty else rest > count
    state = facts(rest == b - first, rest >= 0, *between(0, g, groups))
    sums = {
        "P(g+1) = P(g) + T(g)": following == first + count,
        "P(g+1) is P(G) if g+1 is G": z3.Implies(g + 1 == groups, following == total),
    }
    return [
        Obligation(
            "the invariant holds at the start",
            facts(*between(0, b, total), groups >= 0, g == 0, rest == b)
            | {"P(0) = 0": first == 0, "no group, no tile": z3.Implies(groups == 0, total == 0)},
            z3.And(rest == b - first, rest >= 0, *between(0, g, groups)),
            shown,
        ),
        Obligation(
            "an iteration keeps the invariant",
            state | sums | facts(b < total) | {"the loop continues": again},
            z3.And(rest - count == b - following, rest - count >= 0, *between(0, g + 1, groups)),
            shown,
        ),
        _scan_ends(z3),
        Obligation(
            "at the end the group is found",
            state | sums | {"the loop ends": z3.Not(again)},
            z3.And(*between(first, b, following), rest == b - first),
            shown,
        ),
    ]


def _subtracting_scan() -> Claim:
    def stops_at_empty(first: Sequence[Term], b: Term, choose: cta_map.Choose) -> Term:
        group, rest = 0, b
        while group + 2 < len(first) and rest > first[group + 1] - first[group]:
            rest -= first[group + 1] - first[group]
            group += 1
        return choose(True, lambda: group, lambda: group)

    return claim_by_z3(
        "cta-indexing.subtracting-scan",
        "For any number of groups and any tile counts, the scan that subtracts each group's tiles, as GPU MODE's "
        "template does, ends at the group of tile b, reads no T past the last, and leaves the tile's place in it.",
        subtracting_obligations,
        formulas=(
            "g = 0; rest = b; while rest >= T(g): rest -= T(g); g += 1",
            f"0 <= b < P(G)  =>  {GROUP_FOUND} and rest = b - P(g) at the end",
        ),
        given=("0 <= b < P(G)",),
        controls=(
            Mistake(
                "'rest > T(g)' in place of 'rest >= T(g)'",
                {"skips_empty": False},
                cta_map.example(cta_map.launched(stops_at_empty)),
            ),
        ),
    )


def binary_obligations(z3: Z3, *, strict: bool = False) -> list[Obligation]:
    """Obligations of the binary search; with ``strict``, wrongly, ``P(middle) < b``."""
    low, high, middle, groups, b = z3.Ints("low high middle G b")
    at_low, at_middle, at_high, total = z3.Ints("P(low) P(middle) P(high) P(G)")
    shown = {"b": b, "low": low, "middle": middle, "high": high, "P(middle)": at_middle}
    left = at_middle < b if strict else at_middle <= b
    order = facts(*between(0, low, high), high <= groups)
    invariant = facts(*between(at_low, b, at_high))
    # middle = (low + high) // 2 as an equation of its remainder, which z3 decides faster than a division.
    half = {"middle is half": z3.And(*between(2 * middle, low + high, 2 * middle + 2))}
    continues = {"the loop continues": high - low > 1}
    return [
        Obligation(
            "the invariant holds at the start",
            facts(*between(0, b, total), low == 0, groups >= 0)
            | {
                "P(0) = 0": at_low == 0,
                "high = G": z3.And(high == groups, at_high == total),
                "no group, no tile": z3.Implies(groups == 0, total == 0),
            },
            z3.And(*between(0, low, high), high <= groups, *between(at_low, b, at_high)),
            shown,
        ),
        Obligation("P is read inside the table", order | half | continues, z3.And(*between(0, middle, groups)), shown),
        Obligation(
            "an iteration keeps the invariant",
            order | invariant | half | continues,
            z3.And(
                z3.Implies(left, z3.And(*between(0, middle, high), *between(at_middle, b, at_high))),
                z3.Implies(z3.Not(left), z3.And(low < middle, middle <= groups, *between(at_low, b, at_middle))),
            ),
            shown,
        ),
        Obligation(
            "the loop ends",
            order | half | continues,
            z3.And(high - middle < high - low, middle - low < high - low),
            shown,
        ),
        Obligation(
            "at the end the group is found",
            facts(low < high) | invariant | {"the loop ends": high - low <= 1},
            z3.And(high == low + 1, *between(at_low, b, at_high)),
            shown,
        ),
    ]


def _binary() -> Claim:
    return claim_by_z3(
        "cta-indexing.binary-search",
        "For any number of groups and any tile counts, the binary search over the prefix sums ends at the group of "
        "tile b and reads rows 1 .. G-1 of the table only.",
        binary_obligations,
        formulas=(
            "low, high = 0, G; while high - low > 1: middle = (low + high) // 2;",
            "    if P(middle) <= b: low = middle else: high = middle",
            "0 <= b < P(G)  =>  P(low) <= b < P(low+1) at the end, 0 <= low < G",
        ),
        given=("0 <= b < P(G)",),
        controls=(
            Mistake(
                "'P(middle) < b' in place of 'P(middle) <= b'",
                {"strict": True},
                cta_map.example(cta_map.launched(partial(cta_map.binary, strict=True))),
            ),
        ),
    )
