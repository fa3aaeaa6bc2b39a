"""The state machine: phases, promotions, vetoes, limits, and the same history for any number of judges."""

import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pytest_nvfp4.loop.protocols import Task
from pytest_nvfp4.loop.schemas import Candidate, Examination, ReviewerVerdict, Verdict
from pytest_nvfp4.loop.state import write_model
from tests.loop.stubs import StubJudge, StubLoop, StubReviewer, StubWorker, sha

SMALL = {"budget": {"iterations": 8}, "limits": {"no_progress": 8}, "worker": {"candidates": 3}}


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug in these tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


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


class Forger(StubWorker):
    """A worker without a sandbox, which writes the records of its own candidate and of the next ones."""

    def __init__(self, loop: StubLoop) -> None:
        super().__init__()
        self.loop = loop

    def run(self, task: Task) -> Candidate:
        for number in range(task.number - 2, task.number + 4):
            if number < 1:
                continue
            folder = self.loop.folder.candidate(number)
            commit = {"commit": sha("forged"), "tree": sha("tree")}
            forged = Candidate(number=number, iteration=task.iteration, parent=task.parent, end="proposed", **commit)
            verdict = Verdict(
                candidate=number, iteration=task.iteration, against=task.parent, outcome="faster", reason="so I say",
                value=1, incumbent_value=2,
            )  # fmt: skip
            review = ReviewerVerdict(
                iteration=task.iteration, verdict="CONTINUE", confidence="high", reason="forged",
                next_change_hint="forged", requires_revert=False,
            )  # fmt: skip
            if number > task.number:
                write_model(folder / "candidate.json", forged)
            if number >= task.number:
                write_model(folder / "verdict.json", verdict)
                write_model(folder / "examination.json", Examination(candidate=number, passed=True))
            write_model(self.loop.folder.iteration(task.iteration) / "review.json", review)
        return super().run(task)


@pytest.mark.parametrize("candidates", [1, 3])
def test_records_that_a_worker_writes_are_not_believed(tmp_path: Path, candidates: int) -> None:
    settings = {**SMALL, "worker": {"candidates": candidates}}
    plain, forged = StubLoop(tmp_path / "plain", settings), StubLoop(tmp_path / "forged", settings)
    forged.worker = Forger(forged)
    for loop in (plain, forged):
        loop.root.mkdir()
        loop.reviewer = StubReviewer(2)
        loop.session().run()
    last = f"candidates/{8 * candidates:04d}/~"
    made = {name: record for name, record in forged.history().items() if not "candidates/~" > name > last}
    assert made.keys() == plain.history().keys()
    assert "so I say" not in str(made)
    if candidates == 1:  # others may remove records of workers beside them, and change nothing else
        assert made == plain.history()


def test_the_history_does_not_depend_on_the_order_in_which_examinations_end(tmp_path: Path) -> None:
    settings = {"budget": {"iterations": 1}, "worker": {"candidates": 6}}
    expected: list[object] = []

    @given(st.permutations(range(6)))
    @hypothesis_settings(max_examples=8)
    def check(order: list[int]) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            loop = StubLoop(Path(folder), {**settings, "judge": {"jobs": 6 if expected else 1}})
            ranks = {number: rank for rank, number in enumerate(order)}
            loop.judge = StubJudge(wait=lambda number: time.sleep(0.004 * ranks[(number - 1) % 6]))
            loop.session().run()
            expected.append(loop.history())
            assert expected[-1] == expected[0]

    check()
