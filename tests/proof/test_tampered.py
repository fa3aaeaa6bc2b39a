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
    scale_factors,
    schedules,
)
from pytest_nvfp4.proof.catalogue import pure_claims
from pytest_nvfp4.proof.scale_factors import formula
from pytest_nvfp4.proof.solver import Obligation, discharge
from pytest_nvfp4.proof.statement import Method, Status
from tests.proof.reckoning import LIMITS, fails_at, has_vectors, reckon
from tests.proof.tampered import TAMPERED, run

z3 = pytest.importorskip("z3")

BY_SOLVER = [claim for claim in pure_claims() if claim.method is Method.Z3]


# --- a formula with Python's integers ------------------------------------------------------------------------------


def test_reckoning_is_not_the_solvers():
    x, y = z3.Ints("x y")
    model = fails_at(Obligation("small", {"x = 7": x == 7, "y": y == -2}, x + y * 2 < 3))
    assert [reckon(term, model) for term in (x / y * 0 + x % 4, -x, x * y - 1)] == [3, -7, -15]
    assert reckon(z3.If(x > y, z3.Implies(x < 0, y == 0), False), model) is True
    assert fails_at(Obligation("fine", {"x > 1": x > 1}, x > 0)) is None
    wrong = Obligation("y = 0", {"x = 1": x == 1}, x == 2)
    assert fails_at(wrong, pinned=(x == 3,)) is None, "numbers that are no failure are none"


# --- every control and every hypothesis ----------------------------------------------------------------------------


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
@pytest.mark.slow
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
