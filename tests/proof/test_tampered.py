"""Statements with something wrong in them: each must be refuted, by numbers that plain arithmetic agrees are a failure.

z3 is trusted with finding a failure here and never with judging it: `reckon` goes through a formula with Python's own
integers. The claims themselves are derived again in `test_rederived`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import pytest

from pytest_nvfp4.proof import (
    cta_indexing,
    cta_map,
    group_search,
    integer_range,
    scale_factors,
    schedules,
)
from pytest_nvfp4.proof.catalogue import pure_claims
from pytest_nvfp4.proof.scale_factors import formula
from pytest_nvfp4.proof.solver import Obligation, Questions, discharge
from pytest_nvfp4.proof.statement import Limits, Method, Status

z3 = pytest.importorskip("z3")

LIMITS = Limits(query_ms=600_000)
BY_SOLVER = [claim for claim in pure_claims() if claim.method is Method.Z3]


# --- a formula with Python's integers ------------------------------------------------------------------------------


def reckon(term, model):
    """The value of a term, by Python's arithmetic; the model gives nothing but the values of its symbols."""
    if z3.is_int_value(term) or z3.is_bv_value(term):
        return term.as_long()
    if z3.is_true(term) or z3.is_false(term):
        return z3.is_true(term)
    kind, arguments = term.decl().kind(), term.children()
    if kind == z3.Z3_OP_UNINTERPRETED:
        found = model.eval(term, model_completion=True)
        return found.as_long()
    if kind == z3.Z3_OP_IMPLIES:
        return not reckon(arguments[0], model) or reckon(arguments[1], model)
    if kind == z3.Z3_OP_ITE:
        return reckon(arguments[1 if reckon(arguments[0], model) else 2], model)
    return OPERATIONS[kind]([reckon(each, model) for each in arguments])


def signed(value, bits=32):
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def product(values):
    total = 1
    for value in values:
        total *= value
    return total


OPERATIONS = {
    z3.Z3_OP_ADD: sum,
    z3.Z3_OP_SUB: lambda v: v[0] - sum(v[1:]),
    z3.Z3_OP_UMINUS: lambda v: -v[0],
    z3.Z3_OP_MUL: product,
    z3.Z3_OP_IDIV: lambda v: v[0] // v[1],
    z3.Z3_OP_MOD: lambda v: v[0] % v[1],
    z3.Z3_OP_LE: lambda v: v[0] <= v[1],
    z3.Z3_OP_LT: lambda v: v[0] < v[1],
    z3.Z3_OP_GE: lambda v: v[0] >= v[1],
    z3.Z3_OP_GT: lambda v: v[0] > v[1],
    z3.Z3_OP_EQ: lambda v: v[0] == v[1],
    z3.Z3_OP_AND: all,
    z3.Z3_OP_OR: any,
    z3.Z3_OP_NOT: lambda v: not v[0],
}


def fails_at(obligation, pinned=()):
    """Numbers at which the hypotheses hold and the conclusion does not, both by Python's arithmetic; None if none."""
    solver = z3.Solver()
    solver.set("timeout", LIMITS.query_ms)
    solver.set("random_seed", 0)
    solver.add(*obligation.hypotheses.values(), z3.Not(obligation.conclusion), *pinned)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    for words, hypothesis in obligation.hypotheses.items():
        assert reckon(hypothesis, model), (obligation.name, words)
    assert not reckon(obligation.conclusion, model), obligation.name
    return model


def test_reckoning_is_not_the_solvers():
    x, y = z3.Ints("x y")
    model = fails_at(Obligation("small", {"x = 7": x == 7, "y": y == -2}, x + y * 2 < 3))
    assert [reckon(term, model) for term in (x / y * 0 + x % 4, -x, x * y - 1)] == [3, -7, -15]
    assert reckon(z3.If(x > y, z3.Implies(x < 0, y == 0), False), model) is True
    assert fails_at(Obligation("fine", {"x > 1": x > 1}, x > 0)) is None
    wrong = Obligation("y = 0", {"x = 1": x == 1}, x == 2)
    assert fails_at(wrong, pinned=(x == 3,)) is None, "numbers that are no failure are none"


# --- every control and every hypothesis ----------------------------------------------------------------------------


def has_vectors(term):
    return z3.is_bv(term) or any(map(has_vectors, term.children()))


@pytest.mark.parametrize(
    "control",
    [pytest.param(control, id=f"{claim.name}: {control.words}") for claim in BY_SOLVER for control in claim.controls],
)
def test_the_counterexample_of_a_control_is_one(control):
    verdict = control.check.run(LIMITS)
    assert verdict.status is Status.REFUTED
    said, _, values = verdict.counterexample.partition(" fails")
    (refuted,) = [each for each in control.check.build(z3) if each.name == said]
    numbers = dict(re.findall(r"(\S[^=,]*?) = (-?\d+)(?:,|$)", values.removeprefix(" at ")))
    assert set(numbers) == set(refuted.shown)
    if any(map(has_vectors, refuted.hypotheses.values())):
        return
    pinned = [term == int(numbers[name]) for name, term in refuted.shown.items() if not isinstance(term, int)]
    assert fails_at(refuted, pinned) is not None, verdict.counterexample


# The machine's arithmetic over bit vectors is reckoned in test_integer_range.
@pytest.mark.parametrize(
    "claim", [each for each in BY_SOLVER if not each.name.endswith("machine")], ids=lambda claim: claim.name
)
def test_what_follows_without_a_hypothesis_is_no_tautology(claim):
    """Hypotheses go one after another as long as the conclusion follows; without the next one it fails, by numbers."""
    for obligation in claim.check.build(z3):
        if (groups := re.match(r"G = (\d+):", obligation.name)) and groups[1] not in ("2", "4"):
            continue
        kept = dict(obligation.hypotheses)
        for words in obligation.hypotheses:
            fewer = {each: formula for each, formula in kept.items() if each != words}
            without = replace(obligation, hypotheses=fewer)
            if discharge(z3, without, LIMITS).status is Status.PROVED:
                kept = fewer
            elif not z3.is_quantifier(obligation.conclusion):
                assert fails_at(without) is not None, (obligation.name, words)
        if obligation.name != "G = 2: scan and binary search agree":  # of two groups both are the same comparison
            assert kept, f"{obligation.name} holds whatever is given"
        assert discharge(z3, replace(obligation, conclusion=z3.Not(obligation.conclusion)), LIMITS).status is (
            Status.REFUTED
        ), "the hypotheses leave a case to speak of"


# --- hypotheses that say something else ----------------------------------------------------------------------------


def run(build):
    return Questions(build).run(LIMITS)


def only(obligations, *names):
    """Those of these names, and there are such."""
    found = [each for each in obligations if each.name in names]
    assert len(found) == len(names)
    return found


def swap(obligations, name, words, formula):
    """One obligation with the formula of one hypothesis exchanged."""
    (one,) = only(obligations, name)
    assert words in one.hypotheses
    return [replace(one, hypotheses={**one.hypotheses, words: formula})]


def ints(names):
    found = z3.Ints(names)
    return found if len(found) > 1 else found[0]


def down_to_nothing(z3):
    """The binary search goes on with one group left: its middle is low, and nothing moves."""
    low, high = ints("low high")
    obligations = group_search.binary_obligations(z3)
    return swap(obligations, "the loop ends", "the loop continues", high - low > 0)


def scan_from_one(z3):
    """The scan starts at group 1."""
    g = ints("g")
    return swap(group_search.scan_obligations(z3), "the invariant holds at the start", "g == 0", g == 1)


def scan_past_the_grid(z3):
    """A grid of one CTA more than there are tiles."""
    b, total = ints("b P(G)")
    return swap(group_search.scan_obligations(z3), "an iteration keeps the invariant", "b < P(G)", b <= total)


def subtracting_past_the_grid(z3):
    b, total = ints("b P(G)")
    return swap(group_search.subtracting_obligations(z3), "an iteration keeps the invariant", "b < P(G)", b <= total)


def sums_short(z3):
    first, following, count = ints("P(g) P(g+1) T(g)")
    return swap(
        group_search.subtracting_obligations(z3),
        "at the end the group is found",
        "P(g+1) = P(g) + T(g)",
        following == first + count - 1,
    )


def falling_sums(z3):
    """P(2) may be below P(1): of a group with a negative number of tiles the two searches say different things."""
    both = cta_indexing.agreement_obligations(z3, [4])
    kept = {w: f for w, f in both[0].hypotheses.items() if w != "P(1) <= P(2)"}
    return [replace(both[0], hypotheses=kept)]


def odd_partner_stores(z3):
    """Every CTA of every pair has a tile."""
    x, m = ints("x M")
    (one,) = only(schedules.cluster_obligations(z3), "a CTA past the group's rows is the odd one's partner")
    kept = {w: f for w, f in one.hypotheses.items() if w != "x >= M"}
    return [Obligation("every CTA of a pair has a tile", kept, x < m, {"M": m, "x": x})]


def clusters_of_three(z3):
    rank = ints("rank")
    return swap(
        schedules.cluster_obligations(z3),
        "both CTAs of a cluster have its tile of N and its group",
        "rank is 0 or 1",
        z3.And(rank >= 0, rank <= 2),
    )


def persistent_of_none(z3):
    """A step of no CTA: the loop stays where it is."""
    return swap(schedules.persistent_obligations(z3), "the loop ends", "C >= 1", ints("C") >= 0)


def other_step(z3):
    """Each CTA goes on by C - 1."""
    obligations = schedules.persistent_obligations(z3)
    ctas, c, d, i, j = ints("C c c' i i'")
    return swap(obligations, "by one CTA, once", "the same b", i * (ctas - 1) + c == j * (ctas - 1) + d)


def division_down(z3):
    """32-bit sizes up to 2^31 - 1: m + t - 1 wraps."""
    m = ints("m")
    return swap(
        integer_range.range_obligations(z3), "the sum before the division by the tile", "m <= 2^31 - t", m <= 2**31 - 1
    )


def unbounded_grid(z3):
    """P(G) without a bound: a tile's number leaves 32 bits."""
    obligations = only(integer_range.range_obligations(z3), "the place in the group")
    kept = {w: f for w, f in obligations[0].hypotheses.items() if w != "P(G) <= 2^31 - 1"}
    return [replace(obligations[0], hypotheses=kept)]


def vector_of(mine, theirs):
    """The layout of one kind of factor against the formula of the other."""
    return partial(scale_factors.equal_obligations, vector=theirs, text=scale_factors.explicit(mine))


def blocks_past_the_row(z3):
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


@pytest.mark.parametrize("tampered", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_tampered_statement_is_refuted_by_numbers_that_fail(tampered):
    verdict = run(tampered)
    assert verdict.status is Status.REFUTED, verdict
    said = verdict.counterexample.partition(" fails")[0]
    (refuted,) = [each for each in tampered(z3) if each.name == said]
    if any(z3.is_app(term) and term.num_args() for term in refuted.shown.values() if not isinstance(term, int)):
        refuted = replace(refuted, shown={})
    assert fails_at(refuted) is not None


def test_the_same_table_untampered_is_proved():
    """The negative control of the table: what it tampers with holds as it is."""
    for build in (
        group_search.binary_obligations,
        group_search.scan_obligations,
        group_search.subtracting_obligations,
        cta_indexing.cover_obligations,
        schedules.persistent_obligations,
        partial(scale_factors.equal_obligations, vector=16),
    ):
        assert run(build).status is Status.PROVED


# --- the concrete cases that stand beside the controls -------------------------------------------------------------


def test_examples_that_are_written_out_are_failures():
    """What a control says in words, reckoned again."""
    shown = {control.words: control.example() for claim in BY_SOLVER for control in claim.controls if control.example}
    assert all(shown.values())
    assert -(-129 // 128) == 2
    assert 129 // 128 == 1
    assert "row 128 is in no tile" in shown["M = m // t, rounded down"]
    first = list(itertools.accumulate([3, -2, 2], initial=0))
    assert [g for g in range(3) if first[g] <= 2 < first[g + 1]] == [0, 2]
    assert (
        "b = 2 lies in group 0 (P = 0 .. 3) and in group 2 (P = 1 .. 3)"
        in shown["a group may have a negative number of tiles, as m = -128 gives it"]
    )
    assert sum([3, -2]) == 1
    assert "P(G) = 1" in shown["P may fall behind group g, as a negative tile count makes it"]
    assert (2147483521 + 127 + 2**31) % 2**32 - 2**31 == -(2**31)
    assert formula(0, 16, rest_k=4) == formula(128, 0, rest_k=4) == 2048
    assert formula(128, 0, rest_k=4) == 512 * 1 * 4, "one past the end of one tile of rows"


def test_examples_that_are_problems_fail_on_their_problem():
    """The text of a control's problem is parsed, and the tiles of the wrong map differ from the right one's on it."""
    for claim in BY_SOLVER:
        for control in claim.controls:
            text = control.example() if control.example else ""
            found = re.search(r"problem ([0-9x, ]+): tile \(group, x, y\) = \((\d+), (\d+), (\d+)\) is computed", text)
            if found is None:
                continue
            counts = [(-(-int(m) // 128), -(-int(n) // 128)) for m, n, _ in re.findall(r"(\d+)x(\d+)x(\d+)", found[1])]
            tile = tuple(map(int, found.groups()[1:]))
            exists = tile in cta_map.tiles(counts)
            assert exists != ("does not exist" in text), (claim.name, text)
