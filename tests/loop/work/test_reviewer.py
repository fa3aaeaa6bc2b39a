"""Reviewers: a command in a sandbox in which it can write its verdict only, or a person; neither promotes."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import StoppedError, stopped_by
from pytest_nvfp4.loop.configuration.config import ReviewerSection
from pytest_nvfp4.loop.protocols import InfrastructureError
from pytest_nvfp4.loop.schemas import Candidate, ReviewerVerdict, Verdict
from pytest_nvfp4.loop.state import read_model
from pytest_nvfp4.loop.work.reviewer import CommandReviewer, ManualReviewer
from tests.loop.repositories import Footprint, candidate_of, verdict_of
from tests.loop.workers import Bench

GOOD = {
    "iteration": 1, "verdict": "CONTINUE", "confidence": "high", "reason": "it is faster",
    "next_change_hint": "try three stages", "requires_revert": False, "tokens": 5,
}  # fmt: skip
PRELUDE = f"""
import json, os, pathlib, sys, time
GOOD = json.loads({json.dumps(json.dumps(GOOD))})
VERDICT = pathlib.Path(os.environ["NVFP4_LOOP_VERDICT"])

def answer(**fields):
    VERDICT.write_text(json.dumps(GOOD | fields))
"""


@dataclass
class Review:
    bench: Bench

    @property
    def folder(self) -> Path:
        return self.bench.state.iteration(1)

    def prompt(self, iteration: int, candidates: Sequence[tuple[Candidate, Verdict]], *, answer: Path) -> str:
        return f"review {iteration} with {len(candidates)} candidates, answer in {answer}\n"

    def candidates(self) -> list[tuple[Candidate, Verdict]]:
        candidate = candidate_of(self.bench.repository, 1, "STAGES = 2\n")
        return [(candidate, verdict_of(candidate))]

    def command(self, program: str, *arguments: str, timeout_s: float = 60, **section: object) -> ReviewerVerdict:
        script = self.bench.top.parent / "reviewer.py"
        script.write_text(PRELUDE + textwrap.dedent(program))
        values = {"command": (sys.executable, str(script), *arguments), "readable": (str(script),), **section}
        bench = self.bench
        made = ReviewerSection.model_validate(values)
        reviewer = CommandReviewer(made, bench.repository, bench.state, prompt=self.prompt)
        return reviewer.review(1, self.candidates(), folder=self.folder, timeout_s=timeout_s)


@pytest.fixture
def review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Review:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return Review(Bench(tmp_path / "user"))


def test_a_verdict_is_read_and_copied(review: Review) -> None:
    before = Footprint.of(review.bench.top)
    verdict = review.command("print(sys.stdin.read()); answer()")
    assert verdict == ReviewerVerdict.model_validate(GOOD)
    assert read_model(review.folder / "reviewer_verdict.json", ReviewerVerdict) == verdict
    place = review.bench.state.review(1)
    said = f"review 1 with 1 candidates, answer in {place}/outbox/reviewer_verdict.json\n"
    assert (review.folder / "review_prompt.txt").read_text() == said
    assert (review.folder / "reviewer_attempt_1.stdout.log").read_text() == said + "\n"
    assert not place.exists()
    assert Footprint.of(review.bench.top) == before


def test_a_second_attempt_counts_and_a_failure_after_the_verdict_does_not(review: Review) -> None:
    verdict = review.command("if sys.argv[1] == '2': answer(reason='second'); sys.exit(1)", "{attempt}")
    assert verdict.reason == "second"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "the reviewer ended without a reviewer_verdict.json"),
        ("sys.exit(4)", "the reviewer exited with status 4 without"),
        ("answer(iteration=2)", "belongs to iteration 2, not 1"),
        ("answer(verdict='PROMOTE')", "verdict = 'PROMOTE'"),
        ("answer(promote=True)", "unknown field promote"),
        ("answer(reason='')", "reason = ''"),
        ("answer(requires_revert='no')", "requires_revert = 'no'"),
        ("VERDICT.write_text('{' * 9000)", "nested deeper"),
        ("VERDICT.symlink_to('/etc/passwd')", "is a link"),
        ("answer(); os.link(VERDICT, VERDICT.with_name('x'))", "is a hard link"),
    ],
)
def test_without_a_valid_verdict_there_is_none(review: Review, program: str, message: str) -> None:
    with pytest.raises(InfrastructureError, match="attempt 1") as caught:
        review.command(program, attempts=1)
    assert message in str(caught.value)
    assert not (review.folder / "reviewer_verdict.json").exists()


def test_a_reviewer_that_never_ends_is_ended(review: Review) -> None:
    with pytest.raises(InfrastructureError, match="did not finish within its deadline"):
        review.command("time.sleep(1000)", timeout_s=0.8)


def test_a_reviewer_reads_the_incumbent_and_writes_nothing_but_its_verdict(review: Review) -> None:
    review.command(f"""
    assert pathlib.Path("kernels/k.py").read_text() == "STAGES = 1\\n"
    for place in ("kernels/k.py", "new", ".git/HEAD", "../prompt.txt", {str(review.bench.top / "conftest.py")!r}):
        try:
            pathlib.Path(place).write_text("x")
            sys.exit(f"BREACH {{place}}")
        except OSError:
            pass
    answer()
    """)


def test_a_reviewer_cannot_move_the_branch(review: Review) -> None:
    before = review.bench.repository.incumbent()
    review.command("os.system('git update-ref refs/heads/nvfp4-loop/loop HEAD~0; git branch -f x'); answer()")
    assert review.bench.repository.incumbent() == before


def test_a_person_may_write_the_verdict_in_pieces(review: Review) -> None:
    bench = review.bench
    place = bench.state.review(1) / "outbox" / "reviewer_verdict.json"
    nap = threading.Event()

    def person() -> None:
        while not (bench.state.review(1) / "prompt.txt").exists():
            nap.wait(0.01)
        place.write_text("{")
        nap.wait(0.1)
        place.write_text(json.dumps(GOOD))

    thread = threading.Thread(target=person)
    thread.start()
    reviewer = ManualReviewer(bench.repository, bench.state, prompt=review.prompt, look_s=0.01)
    verdict = reviewer.review(1, review.candidates(), folder=review.folder, timeout_s=60)
    thread.join()
    assert verdict.next_change_hint == "try three stages"


def test_a_person_who_says_nothing_and_a_loop_that_is_stopped(review: Review) -> None:
    bench = review.bench
    reviewer = ManualReviewer(bench.repository, bench.state, prompt=review.prompt, look_s=0.01)
    with pytest.raises(InfrastructureError, match="within 0 s: there is none"):
        reviewer.review(1, [], folder=review.folder, timeout_s=0.05)
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError), stopped_by(stop):
        reviewer.review(1, [], folder=review.folder, timeout_s=60)
    assert not bench.state.review(1).exists()
