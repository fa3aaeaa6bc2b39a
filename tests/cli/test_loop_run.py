"""``nvfp4 loop run`` and ``stop``: results, exit codes, signals, and how to go on. Dry runs, which start nothing."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.limits import how_to_go_on
from pytest_nvfp4.loop.machine.lock import this_process
from pytest_nvfp4.loop.state import Control, Heartbeat, StateFolder, read_model, write_model
from tests.loop.repositories import KERNEL, Footprint, make_repository
from tests.waiting import LONGEST_S, until

KEYS = {
    "status", "reason", "iteration", "phase", "incumbent", "incumbent_candidate", "promotions", "metric",
    "baseline_value", "best_value", "spent", "state",
}  # fmt: skip


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_repository(tmp_path / "user")
    made.joinpath("nvfp4-loop.toml").write_text(f'[kernel]\nfile = "{KERNEL}"\n[worker]\ncommand = ["false"]\n')
    monkeypatch.chdir(made)
    return made


def test_a_dry_run_starts_nothing_and_goes_on(top: Path, cli) -> None:
    before = Footprint.of(top)
    shown = cli("loop", "run", "--mode", "dry-run", "budget.iterations=3")
    assert shown.code == 0
    result = json.loads(shown.out.splitlines()[-1])
    assert result.keys() == KEYS
    assert (result["status"], result["iteration"]) == ("stopped", 3)
    assert "candidate 1 is promoted" in shown.err
    assert "to go on: run the same command with budget.iterations=6;" in shown.err
    assert Footprint.of(top) == before
    state = top / ".nvfp4" / "loop-dry-run"
    assert result["state"] == str(state)
    more = cli("loop", "run", "--mode", "dry-run", "budget.iterations=5", "--json")
    assert json.loads(more.out)["iteration"] == 5
    assert not more.err
    fresh = cli("loop", "run", "--mode", "dry-run", "budget.iterations=2", "--json", "--fresh-start")
    assert json.loads(fresh.out)["iteration"] == 2
    assert len(list((top / ".nvfp4").iterdir())) == 2


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "budget.iterations = 40 is reached",
            "raise the limit to go on: run the same command with budget.iterations=80",
        ),
        ("budget.minutes = 360 is reached: 360 min", "with budget.minutes=720"),
        ("budget.dollars = 0 does not suffice: ...", "with budget.dollars=1 in place of --max-cost"),
        ("limits.no_progress = 6: as many", "run the same command to try as often again, or .* limits.no_progress=12"),
        ("the time of --until is reached", "run the same command to go on$"),
        ("the reviewer says STOP_BLOCKED: budget.iterations = 40 is reached", "run the same command to go on$"),
    ],
)
def test_the_limit_to_raise_is_named(reason: str, said: str) -> None:
    config = LoopConfig.model_validate({"kernel": {"file": "k.py"}, "mode": "manual", "budget": {"dollars": 0}})
    assert re.search(said, how_to_go_on(reason, config))


@pytest.mark.usefixtures("top")
@pytest.mark.parametrize("writes", [0, 1, 3])
def test_a_disk_that_is_full_from_the_beginning_ends_it_with_1(
    cli, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    replace, left = Path.replace, [writes]

    def full(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return replace(self, target)

    dry = ("loop", "run", "--mode", "dry-run", "budget.iterations=1")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        shown = cli(*dry)
    assert shown.code == 1
    result = json.loads(shown.out.splitlines()[-1])
    assert (result["status"], os.strerror(errno.ENOSPC) in result["reason"]) == ("failed", True)
    assert os.strerror(errno.ENOSPC) in shown.err
    assert cli(*dry).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such.toml"], "no-such.toml: no such file"),
        (["a.toml", "b.toml"], "'b.toml' is a second configuration"),
        (["budget.iteration=3"], "did you mean 'budget.iterations'"),
        (["budget.iterations="], "has no value"),
        (["--until", "25:00"], "write it as HH:MM, such as 07:00"),
        (["kernel.file=no.py"], "there is no such file"),
        (["judge.remote=modal"], "set a ceiling: budget.dollars or --max-cost"),
        (["--max-cost", "-1"], "-1"),
        (["mode=dry-run", 'worker.command=["x", "{worktre}"]'], "worker.command has the unknown key {worktre}"),
        (["mode=dry-run", 'notify.command=["x", "{who}"]'], "notify.command has the unknown key {who}"),
    ],
)
def test_what_cannot_be_run(top: Path, cli, arguments: list[str], message: str) -> None:
    shown = cli("loop", "run", *arguments)
    assert shown.code == 2
    assert message in shown.err
    assert not list((top / ".nvfp4").glob("*/state.json"))


def test_a_configuration_that_changed_and_a_loop_that_runs_are_refused(top: Path, cli) -> None:
    dry = ("loop", "run", "--mode", "dry-run", "budget.iterations=1")
    assert cli(*dry).code == 0
    shown = cli(*dry, "worker.candidates=2")
    assert shown.code == 2
    assert "worker.candidates (1 -> 2)" in shown.err
    folder = StateFolder(top / ".nvfp4" / "loop-dry-run")
    parent = this_process(folder.heartbeat, Clock()).model_copy(update={"pid": os.getppid(), "started": 0})
    write_model(folder.lock, parent)
    shown = cli(*dry)
    assert shown.code == 2
    assert f"is in use by process {os.getppid()}" in shown.err


def test_a_changed_kernel_is_refused_with_the_way_out(top: Path, cli) -> None:
    (top / KERNEL).write_text("STAGES = 9\n")
    shown = cli("loop", "run", "mode=manual")
    assert shown.code == 2
    assert "commit or stash its changes first" in shown.err


def _running(top: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest_nvfp4.cli", "loop", "run", "--mode", "dry-run"]
    command += ["budget.iterations=100000", "limits.no_progress=100000", "--until", "23:59"]
    started = subprocess.Popen(command, cwd=top, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    heartbeat = StateFolder(top / ".nvfp4" / "loop-dry-run").heartbeat

    def runs() -> bool:
        beat = read_model(heartbeat, Heartbeat)
        return beat is not None and beat.iteration > 1

    try:
        assert until(runs)
    except BaseException:
        started.kill()
        raise
    return started


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_130_and_says_so(top: Path, number: signal.Signals) -> None:
    process = _running(top)
    process.send_signal(number)
    out, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    result = json.loads(out.splitlines()[-1])
    assert result["status"] == "interrupted"
    assert result["reason"] == f"interrupted by {number.name}"


@pytest.mark.slow
def test_another_process_stops_it(top: Path, cli) -> None:
    state = top / ".nvfp4" / "loop-dry-run"
    assert cli("loop", "stop", "--state", state).code == 1
    process = _running(top)
    try:
        shown = cli("loop", "stop", "--state", state, "--reason", "lunch", "--json")
        asked = json.loads(shown.out)
        assert shown.code == 0
        assert (asked["running"], asked["stop"], asked["pid"]) == (True, "after-iteration", process.pid)
        out, _ = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
    assert process.returncode == 0
    result = json.loads(out.splitlines()[-1])
    assert result["reason"] == "stopped by `nvfp4 loop stop`: lunch"
    assert result["phase"] == "STOPPED"
    shown = cli("loop", "stop", "--now", "--state", state)
    assert shown.code == 1
    assert f"no loop runs in {state}" in shown.err
    assert read_model(StateFolder(state).control, Control) == Control(stop="after-iteration", reason="lunch")
