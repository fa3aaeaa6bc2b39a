"""The machine with a real repository and real workers; only the judge is a stand-in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.loop.repository.git import GitError
from pytest_nvfp4.loop.schemas import Verdict
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model

from .repositories import KERNEL, Footprint, make_repository, user_git
from .stubs import StubLoop
from .whole import session

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.loop.whole import session

left = int(sys.argv[2])

def count(event, arguments):
    global left
    if event in ("open", "os.rename", "os.mkdir", "subprocess.Popen"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

made = session(Path(sys.argv[1]))
sys.addaudithook(count)
made.run()
"""


@pytest.mark.slow
def test_candidates_become_commits_and_the_checkout_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    top = make_repository(tmp_path / "user")
    before, base = Footprint.of(top), user_git(top, "rev-parse", "HEAD")
    end = session(top).run()
    assert (end.status, end.reason) == ("stopped", "budget.iterations = 3 is reached")
    branch = user_git(top, "rev-list", "--reverse", f"{base}..nvfp4-loop/loop").split()
    assert branch == [one.commit for one in end.state.promotions]
    folder = StateFolder(top / ".nvfp4" / "loop")
    assert "+STAGES = " in (folder.candidate(2) / "diff.patch").read_text()
    verdict = read_model(folder.candidate(6) / "verdict.json", Verdict)
    assert verdict is not None
    assert (verdict.outcome, verdict.duplicate_of) == ("duplicate", 1)
    kept = set(user_git(top, "for-each-ref", "--format=%(refname)").splitlines())
    assert "refs/heads/nvfp4-loop/loop" in kept
    assert Footprint.of(top) == before
    assert not list(folder.work(0).parent.glob("*"))
    assert user_git(top, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_new_directory_of_state_does_not_take_over_a_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    top = make_repository(tmp_path / "user")
    session(top, iterations=1).run()
    before = user_git(top, "for-each-ref")
    (top / ".nvfp4").rename(tmp_path / "elsewhere")
    with pytest.raises(GitError, match=r"another directory of state.*--fresh-start"):
        session(top, iterations=1).run()
    assert user_git(top, "for-each-ref") == before
    assert session(top, iterations=1).run(fresh=True).state.baseline == user_git(top, "rev-parse", "HEAD")


@pytest.mark.slow
def test_a_fresh_start_begins_at_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    top = make_repository(tmp_path / "user")
    session(top, iterations=1).run()
    (top / KERNEL).write_text("STAGES = 77\n")
    user_git(top, "commit", "--quiet", "-am", "mine")
    end = session(top, iterations=1).run(fresh=True)
    assert end.state.baseline == user_git(top, "rev-parse", "HEAD")
    assert end.state.iteration == 1


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tops = [make_repository(tmp_path / name / "user") for name in ("plain", "killed")]
    histories = []
    for top in tops:
        if top.parent.name == "killed":
            for operations in (50, 90, 150, 230):
                done = subprocess.run(
                    [sys.executable, "-c", KILLED, top, str(operations)], cwd=ROOT, capture_output=True, check=False
                )
                assert done.returncode in (-9, 0), done.stderr.decode()
        end = session(top).run()
        loop = StubLoop(tmp_path)
        loop.folder = StateFolder(top / ".nvfp4" / "loop")
        outcomes = [
            (loop.folder.candidate(number) / "verdict.json").read_text().partition('"outcome": ')[2].splitlines()[0]
            for number in range(1, 7)
        ]
        trees = user_git(top, "log", "--format=%T", "nvfp4-loop/loop").splitlines()
        histories.append((end.reason, outcomes, trees))
    assert histories[0] == histories[1]
    state = read_model(StateFolder(tops[1] / ".nvfp4" / "loop").state, LoopState)
    assert state is not None
    assert state.restarts >= 2


def test_a_file_that_may_grow_no_further_stops_it(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tests.loop.stubs import StubLoop\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "settings = {'budget': {'iterations': 20}, 'limits': {'no_progress': 20}}\n"
        "end = StubLoop(Path(sys.argv[1]), settings).session().run()\n"
        "print(end.status, end.reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("failed")
    assert os.strerror(27) in done.stdout
    settings = {"budget": {"iterations": 20}, "limits": {"no_progress": 20}}
    loop, plain = StubLoop(tmp_path, settings), StubLoop(tmp_path / "plain", settings)
    plain.root.mkdir()
    loop.session().run()
    plain.session().run()
    assert loop.history() == plain.history()
