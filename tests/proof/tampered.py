"""Obligations with one hypothesis changed, each of which must fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from pytest_nvfp4.proof import cta_indexing, group_search, integer_range, scale_factors, schedules
from pytest_nvfp4.proof.solver import Obligation, Questions
from pytest_nvfp4.proof.statement import ProofVerdict
from tests.proof.reckoning import LIMITS

z3 = pytest.importorskip("z3")


def run(build: Callable[[ModuleType], list[Obligation]]) -> ProofVerdict:
    return Questions(build).run(LIMITS)


def only(obligations: Sequence[Obligation], *names: str) -> list[Obligation]:
    """Those of these names, and there are such."""
    found = [each for each in obligations if each.name in names]
    assert len(found) == len(names)
    return found


def swap(obligations: Sequence[Obligation], name: str, words: str, formula: Any) -> list[Obligation]:
    """One obligation with the formula of one hypothesis exchanged."""
    (one,) = only(obligations, name)
    assert words in one.hypotheses
    return [replace(one, hypotheses={**one.hypotheses, words: formula})]


def ints(names: str) -> Any:
    found = z3.Ints(names)
    return found if len(found) > 1 else found[0]


def down_to_nothing(z3: ModuleType) -> list[Obligation]:
    """The binary search goes on with one group left: its middle is low, and nothing moves."""
    low, high = ints("low high")
    obligations = group_search.binary_obligations(z3)
    return swap(obligations, "the loop ends", "the loop continues", high - low > 0)


def scan_from_one(z3: ModuleType) -> list[Obligation]:
    """The scan starts at group 1."""
    g = ints("g")
    return swap(group_search.scan_obligations(z3), "the invariant holds at the start", "g == 0", g == 1)


def scan_past_the_grid(z3: ModuleType) -> list[Obligation]:
    """A grid of one CTA more than there are tiles."""
    b, total = ints("b P(G)")
    return swap(group_search.scan_obligations(z3), "an iteration keeps the invariant", "b < P(G)", b <= total)


def subtracting_past_the_grid(z3: ModuleType) -> list[Obligation]:
    b, total = ints("b P(G)")
    return swap(group_search.subtracting_obligations(z3), "an iteration keeps the invariant", "b < P(G)", b <= total)


def sums_short(z3: ModuleType) -> list[Obligation]:
    first, following, count = ints("P(g) P(g+1) T(g)")
    return swap(
        group_search.subtracting_obligations(z3),
        "at the end the group is found",
        "P(g+1) = P(g) + T(g)",
        following == first + count - 1,
    )


def falling_sums(z3: ModuleType) -> list[Obligation]:
    """P(2) may be below P(1): of a group with a negative number of tiles the two searches say different things."""
    both = cta_indexing.agreement_obligations(z3, [4])
    kept = {w: f for w, f in both[0].hypotheses.items() if w != "P(1) <= P(2)"}
    return [replace(both[0], hypotheses=kept)]


def odd_partner_stores(z3: ModuleType) -> list[Obligation]:
    """Every CTA of every pair has a tile."""
    x, m = ints("x M")
    (one,) = only(schedules.cluster_obligations(z3), "a CTA past the group's rows is the odd one's partner")
    kept = {w: f for w, f in one.hypotheses.items() if w != "x >= M"}
    return [Obligation("every CTA of a pair has a tile", kept, x < m, {"M": m, "x": x})]


def clusters_of_three(z3: ModuleType) -> list[Obligation]:
    rank = ints("rank")
    return swap(
        schedules.cluster_obligations(z3),
        "both CTAs of a cluster have its tile of N and its group",
        "rank is 0 or 1",
        z3.And(rank >= 0, rank <= 2),
    )


def persistent_of_none(z3: ModuleType) -> list[Obligation]:
    """A step of no CTA: the loop stays where it is."""
    return swap(schedules.persistent_obligations(z3), "the loop ends", "C >= 1", ints("C") >= 0)


def other_step(z3: ModuleType) -> list[Obligation]:
    """Each CTA goes on by C - 1."""
    obligations = schedules.persistent_obligations(z3)
    ctas, c, d, i, j = ints("C c c' i i'")
    return swap(obligations, "by one CTA, once", "the same b", i * (ctas - 1) + c == j * (ctas - 1) + d)


def division_down(z3: ModuleType) -> list[Obligation]:
    """32-bit sizes up to 2^31 - 1: m + t - 1 wraps."""
    m = ints("m")
    return swap(
        integer_range.range_obligations(z3), "the sum before the division by the tile", "m <= 2^31 - t", m <= 2**31 - 1
    )


def unbounded_grid(z3: ModuleType) -> list[Obligation]:
    """P(G) without a bound: a tile's number leaves 32 bits."""
    obligations = only(integer_range.range_obligations(z3), "the place in the group")
    kept = {w: f for w, f in obligations[0].hypotheses.items() if w != "P(G) <= 2^31 - 1"}
    return [replace(obligations[0], hypotheses=kept)]


def vector_of(mine: int, theirs: int) -> Callable[[ModuleType], list[Obligation]]:
    """The layout of one kind of factor against the formula of the other."""
    return partial(scale_factors.equal_obligations, vector=theirs, text=scale_factors.explicit(mine))


def blocks_past_the_row(z3: ModuleType) -> list[Obligation]:
    """k-blocks beyond R: the rows of a tile run into each other."""
    return scale_factors.bijective_obligations(z3, rest_k_short=True)


TAMPERED = {
    "the binary search goes on with one group": down_to_nothing,
    "the scan starts at group 1": scan_from_one,
    "a grid of one CTA too many, scan": scan_past_the_grid,
    "a grid of one CTA too many, subtracting scan": subtracting_past_the_grid,
    "the scan's sums are one short": sums_short,
    "prefix sums are one short": partial(cta_indexing.cover_obligations, short=1),
    "prefix sums are one long": partial(cta_indexing.cover_obligations, short=-1, monotone=False),
    "prefix sums fall": falling_sums,
    "negative tile counts": partial(cta_indexing.unique_obligations, counts=False),
    "an odd number of tiles in pairs": odd_partner_stores,
    "clusters of three with the arithmetic of two": clusters_of_three,
    "a persistent grid of no CTA": persistent_of_none,
    "a persistent step of C - 1": other_step,
    "sizes up to 2^31 - 1": division_down,
    "a grid without a bound": unbounded_grid,
    "16 elements to a factor laid out, 32 claimed": vector_of(16, 32),
    "32 elements to a factor laid out, 16 claimed": vector_of(32, 16),
    "rows of a tile 8 bytes apart": partial(
        scale_factors.equal_obligations, vector=16, text="(((32,4),?),((16,4),?)):(((8,4),?),((0,1),512))"
    ),
    "blocks of 32 rows 8 bytes apart": partial(
        scale_factors.equal_obligations, vector=16, text="(((32,4),?),((16,4),?)):(((16,8),?),((0,1),512))"
    ),
    "tiles of k 256 bytes apart": partial(
        scale_factors.equal_obligations, vector=16, text="(((32,4),?),((16,4),?)):(((16,4),?),((0,1),256))"
    ),
    "tiles of k first": partial(scale_factors.equal_obligations, vector=16, tile_stride=1),
    "k not padded": blocks_past_the_row,
    "rows not padded": partial(scale_factors.bijective_obligations, rest_m_short=True),
    "the order is no permutation": partial(schedules.sorted_obligations, permutation=False),
    "the position used as the group": partial(schedules.sorted_obligations, through_order=False),
}
