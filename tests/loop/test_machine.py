"""The state machine: phases, promotions, vetoes, limits, and the same history for any number of judges."""

from pathlib import Path

import pytest

from .stubs import StubLoop, StubReviewer

SMALL = {"budget": {"iterations": 8}, "limits": {"no_progress": 8}, "worker": {"candidates": 3}}


def test_a_loop_runs_to_its_last_iteration(tmp_path: Path) -> None:
    loop = StubLoop(tmp_path, SMALL)
    end = loop.session().run()
    assert (end.status, end.reason) == ("stopped", "budget.iterations = 8 is reached")
    assert end.state.phase == "STOPPED"
    assert end.state.iteration == 8
    assert loop.worker.runs == list(range(1, 25))
    promoted = [one.commit for one in end.state.promotions]
    assert promoted
    assert loop.repository.commits()[1:] == promoted
    assert end.state.incumbent == promoted[-1]
    values = [one.value for one in end.state.promotions if one.value is not None]
    assert values == sorted(values, reverse=True)
    assert end.state.best_value == values[-1] < end.state.baseline_value == 100
    assert end.state.spent.tokens == 2400
    assert end.state.spent.usd == 12
    outcomes = {v["outcome"] for name, v in loop.history().items() if name.endswith("verdict.json")}  # type: ignore[index]
    assert outcomes >= {"faster", "slower", "rejected", "duplicate", "no-candidate", "infrastructure"}


@pytest.mark.parametrize("jobs", [2, 8])
def test_the_history_does_not_depend_on_the_number_of_judges(tmp_path: Path, jobs: int) -> None:
    one = StubLoop(tmp_path / "one", {**SMALL, "judge": {"jobs": 1}})
    many = StubLoop(tmp_path / "many", {**SMALL, "judge": {"jobs": jobs}})
    for loop in (one, many):
        loop.root.mkdir()
        loop.reviewer = StubReviewer(1, 3)
        loop.session().run()
    assert one.history() == many.history()


def test_a_reviewer_vetoes_the_promotions_of_its_iteration(tmp_path: Path) -> None:
    plain, vetoed = StubLoop(tmp_path / "plain", SMALL), StubLoop(tmp_path / "vetoed", SMALL)
    for loop in (plain, vetoed):
        loop.root.mkdir()
    first = plain.session().run().state.promotions[0]
    vetoed.reviewer = StubReviewer(first.iteration)
    end = vetoed.session().run()
    assert vetoed.reviewer.reviewed == list(range(1, 9))
    assert end.state.promotions[0].iteration > first.iteration
    assert vetoed.repository.commits()[1:] == [one.commit for one in end.state.promotions]
