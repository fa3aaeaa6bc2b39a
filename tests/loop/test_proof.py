"""Forty candidates without an agent: each wrong one is refused for its own reason, each improvement is promoted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.loop.schemas import Candidate, Examination, Verdict
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model

from .proof import repository
from .proof.candidates import KERNEL, STEPS, Step
from .repositories import Footprint, user_git

BRANCH = "nvfp4-loop/proof"
IMPROVEMENTS = [number for number, step in enumerate(STEPS, 1) if step.outcome == "faster"]
LEAST_GAIN = 0.15


def nvfp4(top: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest_nvfp4.cli", *arguments]
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def surprises(folder: StateFolder, number: int, step: Step) -> Iterator[str]:
    """Yield what the loop made of a candidate, where whoever reads the candidate expects something else."""
    own = folder.candidate(number)
    candidate = read_model(own / "candidate.json", Candidate)
    verdict = read_model(own / "verdict.json", Verdict)
    examination = read_model(own / "examination.json", Examination)
    assert candidate is not None
    assert verdict is not None
    said = f"{verdict.reason}\n{verdict.feedback}"
    red = [gate.gate for gate in examination.gates if gate.outcome != "passed"] if examination is not None else []
    for what, found, expected in (
        ("its worker ended", candidate.end, step.end),
        ("it is", verdict.outcome, step.outcome),
        ("it repeats", verdict.duplicate_of, step.original),
        ("it fails", red, [gate for gate in step.gates if gate in red] or [*step.gates]),
    ):
        if found != expected:
            yield f"{number} ({step.name}): {what} {found}, not {expected}: {said}"
    if not re.search(step.says, said, re.IGNORECASE):
        yield f"{number} ({step.name}): its author is told: {said}"


def test_every_step_can_be_done_and_is_of_its_own_kind() -> None:
    assert len(STEPS) == 40
    assert len({step.name for step in STEPS}) == 40
    for step, text in zip(STEPS, repository.kernels(), strict=False):
        assert step.edit is None or step.edit(text) != text, step.name
    outcomes = {step.outcome for step in STEPS}
    assert outcomes == {"faster", "slower", "undecided", "rejected", "duplicate", "no-candidate"}


@pytest.mark.slow
def test_forty_candidates_without_an_agent(tmp_path: Path) -> None:
    """One test, because a loop of minutes must not be run once for each process of pytest."""
    top = repository.make(tmp_path)
    before, folder = Footprint.of(top), StateFolder(top / ".nvfp4" / "loop")
    end = json.loads(nvfp4(top, "loop", "run").splitlines()[-1])
    assert [line for number, step in enumerate(STEPS, 1) for line in surprises(folder, number, step)] == []

    # What was won is the history of a branch, in which each promotion carries its evidence.
    state = read_model(folder.state, LoopState)
    assert state is not None
    assert (end["status"], state.iteration) == ("stopped", len(STEPS))
    assert [each.candidate for each in state.promotions] == IMPROVEMENTS
    commits = user_git(top, "rev-list", "--reverse", f"HEAD..{BRANCH}").split()
    assert commits == [each.commit for each in state.promotions]
    for promotion in state.promotions:
        verdict = read_model(folder.candidate(promotion.candidate) / "verdict.json", Verdict)
        message = user_git(top, "show", "--no-patch", "--format=%B", promotion.commit)
        assert verdict is not None
        assert verdict.artifacts
        assert f"{verdict.incumbent_value:.6g} before, {verdict.value:.6g} after" in message
        assert all(digest in message for digest in verdict.artifacts.values())
    assert user_git(top, "diff", "--name-only", f"HEAD..{BRANCH}") == KERNEL
    last = user_git(top, "show", f"{BRANCH}:{KERNEL}") + "\n"
    assert last == repository.kernels()[-1]

    # The loop's number is the one that the command shows, and far better than that of the start.
    (tmp_path / KERNEL).write_text(last)
    shown = nvfp4(tmp_path, "model", KERNEL, "--problem", "256x256x1024", "--no-what-if", "--json")
    assert json.loads(shown)["problems"][0]["modelled_us"] == pytest.approx(state.best_value)
    assert state.baseline_value is not None
    assert state.best_value is not None
    assert state.best_value < (1 - LEAST_GAIN) * state.baseline_value

    # The user's checkout is as it was, no checkout of the loop is left, and the report says what was won.
    assert Footprint.of(top) == before
    assert len(user_git(top, "worktree", "list").splitlines()) == 1
    report = nvfp4(top, "loop", "report", "--json")
    assert all(commit in report for commit in commits)
