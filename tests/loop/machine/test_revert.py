"""Promotions that are taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_nvfp4.cli.app import app
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.machine.lock import LoopLock
from pytest_nvfp4.loop.schemas import Verdict
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model, write_model
from tests.loop.repositories import KERNEL, Footprint, make_repository, user_git
from tests.loop.whole import session


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository of a loop that has stopped after three iterations and some promotions."""
    monkeypatch.setenv("HOME", str(tmp_path))
    place = make_repository(tmp_path / "user")
    session(place).run()
    monkeypatch.chdir(place)
    return place


def state_of(top: Path) -> LoopState:
    state = read_model(StateFolder(top / ".nvfp4" / "loop").state, LoopState)
    assert state is not None
    return state


def revert(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["loop", "revert", *arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
def test_the_last_promotion_is_taken_back_and_the_loop_goes_on(top: Path) -> None:
    before, footprint = state_of(top), Footprint.of(top)
    assert len(before.promotions) >= 2, "there is one below the last"
    last, kept = before.promotions[-1], before.promotions[-2]
    told = json.loads(revert("--reason", "wrong on\nNvfp4-Candidate: 99", "--json"))
    after = state_of(top)
    assert told["reverted"] == [last.candidate]
    assert (after.incumbent_candidate, after.best_value) == (kept.candidate, kept.value)
    assert after.incumbent == user_git(top, "rev-parse", "nvfp4-loop/loop") == told["incumbent"]
    assert user_git(top, "rev-parse", "nvfp4-loop/loop^") == before.incumbent, "the history stays"
    assert user_git(top, "diff", kept.commit, "nvfp4-loop/loop") == ""
    trailers = user_git(top, "log", "-1", "--format=%(trailers)", "nvfp4-loop/loop").split("\n")
    assert [line for line in trailers if line] == [
        f"Nvfp4-Reverts: {before.incumbent}",
        f"Nvfp4-Restores: {kept.commit}",
    ]
    assert Footprint.of(top) == footprint
    end = session(top, iterations=5).run()
    assert end.status == "stopped"
    assert end.state.iteration == 5
    folder = StateFolder(top / ".nvfp4" / "loop")
    assert "was reverted: wrong on" in (folder.candidate(after.next_candidate) / "prompt.txt").read_text()
    assert user_git(top, "merge-base", "--is-ancestor", after.incumbent, "nvfp4-loop/loop") == ""
    assert last.candidate not in [each.candidate for each in end.state.promotions if not each.reverted]
    verdicts = [read_model(folder.candidate(number) / "verdict.json", Verdict) for number in range(7, 11)]
    assert all(each is not None and each.against for each in verdicts)


def test_all_from_a_candidate_on_are_taken_back(top: Path) -> None:
    before = state_of(top)
    revert(str(before.promotions[0].candidate))
    after = state_of(top)
    assert all(each.reverted for each in after.promotions)
    assert (after.incumbent_candidate, after.best_value) == (0, before.baseline_value)
    assert user_git(top, "diff", before.baseline, "nvfp4-loop/loop") == ""
    assert "no promotion is left" in revert(code=2)


@pytest.mark.slow
def test_what_was_interrupted_is_done_again(top: Path) -> None:
    """The branch has moved, and the state does not say so."""
    before = state_of(top)
    revert("--reason", "r")
    after = state_of(top)
    write_model(StateFolder(top / ".nvfp4" / "loop").state, before)
    revert("--reason", "r")
    assert state_of(top) == after


def test_it_refuses_what_it_cannot_do(top: Path) -> None:
    folder = StateFolder(top / ".nvfp4" / "loop")
    state = state_of(top)
    assert "accepted are" in revert("77", code=2)
    with LoopLock(folder.lock, what="it", heartbeat=folder.heartbeat, stale_s=60, clock=Clock()):
        assert "is in use by process" in revert(code=2)
    write_model(folder.state, state.model_copy(update={"interrupted": "JUDGE"}))
    assert "has not come to the end of iteration 3" in revert(code=2)
    write_model(folder.state, state)
    user_git(top, "branch", "--force", "nvfp4-loop/loop", state.baseline)
    assert "another process has moved it" in revert(code=2)
    assert state_of(top) == state
    assert "holds no loop" in revert("--state", str(top / "none"), code=2)
    assert not (top / "none").exists()
    assert (top / KERNEL).read_text() == "STAGES = 1\n"
