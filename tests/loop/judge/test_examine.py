"""The examination of a commit: gates in order, what red, skipped and infrastructure mean, duplicates, snapshots."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_nvfp4.loop.protocols import BudgetError, InfrastructureError
from tests.loop.judge.products import COMMIT, HOST, Bench, candidate, check, ended, modelled

GATES = ("compile", "layouts", "tmem", "coverage", "verify", "races", "cost", "model")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.baseline()
    return made


def test_gates_pass_in_their_order_with_counters_and_modelled_times(bench: Bench) -> None:
    found = bench.examine(candidate())
    assert (found.passed, found.infrastructure, found.duplicate_of) == (True, "", None)
    assert bench.seen == [f"{gate} passed" for gate in GATES]
    assert bench.script.ran == ["compile", "tmem", "cost", "model"]
    assert found.counters == {"p0/tma.load.bytes": 100.0}
    assert [(time.problem, time.us) for time in found.modelled] == [("p0", 10.0)]
    assert found.table == "b200 1 abc, model m1, cold L2"
    assert found.path == {"p0/mma: tcgen05.mma": 10.0}
    assert not any(folder.exists() for folder in bench.trees.made)


@pytest.mark.parametrize("gate", GATES[:6])
def test_the_first_red_gate_is_the_last_one(bench: Bench, gate: str) -> None:
    finding = {
        "kind": "race",
        "message": "two accesses race",
        "file": "k.py",
        "line": 3,
        "text": " x[0] = 1",
        "hint": "wait",
    }
    bench.script.checks[gate] = [
        check(gate, "failed", message="two accesses race", file="k.py", line=3, findings=[finding])
    ]
    found = bench.examine(candidate())
    assert not found.passed
    assert bench.seen == [*(f"{name} passed" for name in GATES[: GATES.index(gate)]), f"{gate} failed"]
    assert found.gates[-1].message == f"{gate}[gpumode-0]: k.py:3: two accesses race\n    x[0] = 1\nhint: wait"
    assert ("cost" in bench.script.ran, found.infrastructure) == (False, "")


def test_cost_and_model_are_gates_and_a_refused_model_is_no_pass(bench: Bench) -> None:
    bench.script.times = [modelled(1.0, status="refused", modelled_us=None, refused=["no such kind of kernel"])]
    found = bench.examine(candidate())
    assert (found.passed, found.gates[-1].gate, found.gates[-1].outcome) == (False, "model", "failed")
    assert "no such kind of kernel" in found.gates[-1].message


def test_a_gate_of_which_nothing_ran_does_not_pass(bench: Bench) -> None:
    bench.script.checks["verify"] = [check("verify", "skipped", message="deselected")]
    assert not bench.examine(candidate()).passed
    assert bench.seen[-1] == "verify skipped"
    bench.script.checks["verify"] = []
    assert not bench.examine(candidate()).passed
    bench.script.checks["verify"] = [check("verify", "skipped", message="not run: no device")]
    assert not bench.examine(candidate()).passed
    assert bench.seen[-1] == "verify unavailable"


def test_a_gate_that_leaves_out_a_problem_does_not_pass(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    other = {"check": "races[gpumode-1]"}
    bench.script.checks["races"] = [check("races"), check("races", **other)]
    assert bench.baseline().passed
    assert bench.examine(candidate()).passed
    bench.script.checks["races"] = [check("races"), check("races", "skipped", message="no launch", **other)]
    found = bench.examine(candidate())
    assert (found.passed, found.gates[-1].gate, found.gates[-1].outcome) == (False, "races", "skipped")
    bench.script.checks["verify"] = [check("verify"), check("verify", "skipped", message="not run: no device")]
    assert bench.examine(candidate()).gates[-1].outcome == "unavailable"


@pytest.mark.parametrize(("code", "whole"), [(0, True), (1, True), (2, False), (3, False), (-9, False)])
def test_a_run_of_pytest_that_did_not_end_says_nothing(bench: Bench, code: int, whole: bool) -> None:
    bench.script.code = code
    found = bench.examine(candidate())
    assert (found.passed, bool(found.infrastructure)) == (whole, not whole)


def test_the_hash_covers_the_compiles_of_all_configurations(bench: Bench) -> None:
    hashes = set()
    for one, two in (("1", "3"), ("2", "3")):
        bench.script.checks["compile"] = [
            check("compile", kernel=name, values={"code_sha256": sha * 64}) for name, sha in (("a", one), ("b", two))
        ]
        hashes.add(bench.examine(None).ptx_sha256)
    assert len(hashes) == 2
    bench.script.checks["compile"] = [check("compile", values={})]
    assert bench.examine(None).ptx_sha256 is None, "what was not compiled is the same as nothing"


def test_what_does_not_apply_to_the_baseline_may_be_skipped_and_what_it_passed_may_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.script.checks["tmem"] = []
    assert bench.baseline().passed
    assert bench.examine(candidate()).passed
    bench.script.checks["races"] = []
    found = bench.examine(candidate())
    assert (found.passed, found.gates[-1].gate, found.gates[-1].outcome) == (False, "races", "skipped")


@pytest.mark.parametrize("gate", ["compile", "verify"])
def test_a_baseline_that_cannot_be_verified_does_not_pass(tmp_path: Path, gate: str) -> None:
    bench = Bench(tmp_path)
    bench.script.checks[gate] = []
    assert not bench.examine(None).passed


def test_a_check_that_leaves_its_failure_to_a_later_one_is_red_with_its_message(bench: Bench) -> None:
    bench.script.checks["coverage"] = [
        check("coverage", "skipped", message="the kernel fails: see k.py::verify[gpumode-0]")
    ]
    bench.script.checks["verify"] = [check("verify", "failed", message="2 elements are wrong")]
    found = bench.examine(candidate())
    assert (found.gates[-1].gate, found.gates[-1].outcome) == ("coverage", "failed")
    assert "2 elements are wrong" in found.gates[-1].message


def test_a_gate_that_does_not_apply_any_more_is_red_with_what_a_later_one_has_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.baseline().passed
    bench.script.checks["coverage"] = [check("coverage", "skipped", message="no kernel was launched")]
    bench.script.checks["verify"] = [check("verify", "failed", message="C descends from torch's mm")]
    red = bench.examine(candidate()).gates[-1]
    assert (red.gate, red.outcome) == ("coverage", "skipped")
    assert re.search(r"no kernel was launched\n.*C descends from torch's mm", red.message)


CHANGE = {"name": "k.sA", "kind": "changed", "severity": "different", "protected": False, "old": "a", "new": "b"}


@pytest.mark.parametrize(
    ("layouts", "change", "protected", "passes"),
    [
        ("gate", {}, [], False),
        ("reported", {}, [], True),
        ("reported", {"protected": True}, [], False),
        ("reported", {"error": "poisoned"}, [], False),
        ("reported", {}, ["k.s*"], False),
        ("reported", {"name": "k.new", "old_name": "k.sA"}, ["k.sA"], False),
    ],
)
def test_the_policy_decides_about_layouts(
    tmp_path: Path, layouts: str, change: dict[str, object], protected: list[str], passes: bool
) -> None:
    bench = Bench(tmp_path, policy={"layouts": layouts, "protected": protected})
    bench.baseline()
    diff = {"changes": [CHANGE | change]}
    bench.script.checks["layouts"] = [check("layouts", "failed", message="1 layout changed", diff=diff)]
    found = bench.examine(candidate())
    assert found.passed is passes
    assert "different, changed: a -> b" in found.layouts[0]


def test_a_protected_layout_of_the_policy_is_red_below_the_gate_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy={"protected": ["k.sA"]})
    bench.baseline()
    diff = {"changes": [CHANGE | {"severity": "cosmetic"}]}
    bench.script.checks["layouts"] = [check("layouts", diff=diff)]
    assert bench.examine(candidate()).gates[-1].gate == "layouts"


def test_a_known_kernel_is_not_run_and_another_grid_or_wrapper_is_another_kernel(bench: Bench) -> None:
    first = bench.examine(candidate())
    assert first.ptx_sha256 is not None
    known = {first.ptx_sha256: 7}
    bench.trees.commits["b" * 40] = {"k.py": f"# a comment\n{HOST}".replace("x[0] = 1", "x[0] = 2")}
    bench.script.commands.clear()
    again = bench.examine(candidate(2, "b" * 40), known=known)
    assert (again.duplicate_of, again.passed, bench.script.ran) == (7, False, ["compile"])
    assert [gate.gate for gate in again.gates] == ["compile"]
    bench.trees.commits["b" * 40] = {"k.py": HOST.replace("    device(data)", "    device(data, grid=2)")}
    assert bench.examine(candidate(2, "b" * 40), known=known).duplicate_of is None
    bench.trees.commits["b" * 40] = {"k.py": HOST}
    bench.script.checks["compile"] = [check("compile", values={"code_sha256": "2" * 64})]
    assert bench.examine(candidate(2, "b" * 40), known=known).duplicate_of is None


def test_other_files_that_may_change_are_part_of_the_hash(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy={"may_change": ["lib/*.py"]})
    hashes = set()
    for text in ("A = 1\n", "A = 2\n"):
        bench.trees.commits[COMMIT] = {"k.py": HOST, "lib/a.py": text, "data.txt": text}
        hashes.add(bench.examine(None).ptx_sha256)
    assert len(hashes) == 2


def test_the_end_of_a_command_without_an_answer_is_infrastructure(bench: Bench) -> None:
    bench.script.ends["tmem"] = ended(-9, stderr="Killed")
    found = bench.examine(candidate())
    assert "was ended by SIGKILL" in found.infrastructure
    assert not found.passed


def test_an_input_that_model_refuses_is_the_candidates_fault(bench: Bench) -> None:
    bench.script.ends["model"] = ended(2, stderr="nvfp4: error: k.py has no custom_kernel")
    found = bench.examine(candidate())
    assert (found.infrastructure, found.gates[-1].outcome) == ("", "failed")
    assert "no custom_kernel" in found.gates[-1].message


@pytest.mark.parametrize(("limit", "infrastructure"), [(1800.0, False), (1e-3, True)])
def test_an_endless_examination_is_red_if_the_baseline_was_much_faster(
    tmp_path: Path, limit: float, infrastructure: bool
) -> None:
    bench = Bench(tmp_path)
    bench.baseline()
    bench = Bench(tmp_path, judge={"timeout_s": limit})
    bench.script.ends["tmem"] = ended(-9, timed_out=True)
    found = bench.examine(candidate())
    assert bool(found.infrastructure) is infrastructure
    assert not found.passed


def test_a_full_disk_is_infrastructure_also_if_it_fills_up_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    bench.script.checks["verify"] = [check("verify", "failed", message="No space left on device")]

    def fill(arguments: Sequence[str], _cwd: Path) -> None:
        if "--nvfp4-check=verify" in arguments:
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, 1 << 20))

    bench.script.before = fill
    assert "is full" in bench.examine(candidate()).infrastructure
    bench.script.commands.clear()
    assert "is full" in bench.examine(candidate()).infrastructure
    assert not bench.script.commands


def test_without_the_dsl_nothing_is_examined(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_nvfp4.loop.judge.examine.installed_dsl_version", lambda: None)
    assert "nvidia-cutlass-dsl is not installed" in bench.examine(candidate()).infrastructure
    assert not bench.script.commands


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), InfrastructureError("git failed")])
def test_a_command_or_checkout_that_fails_is_infrastructure(bench: Bench, error: Exception) -> None:
    def fail(_arguments: Sequence[str], _cwd: Path) -> None:
        raise error

    bench.script.before = fail
    found = bench.examine(candidate())
    assert found.infrastructure
    assert not found.gates


def test_the_baselines_snapshots_are_kept_and_laid_out_for_candidates(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.trees.commits[COMMIT] = {"k.py": HOST, "snapshots/k/own.txt": "theirs"}

    def record(arguments: Sequence[str], cwd: Path) -> None:
        made = cwd / "snapshots" / "k" / "layouts.txt"
        if "--snapshot-update" in arguments:
            made.write_text("baseline")
            (cwd / "snapshots" / "k" / "own.txt").write_text("changed")
        bench.script.checks["layouts"] = [
            check("layouts", "passed" if made.exists() else "failed", message="no snapshot")
        ]

    bench.script.before = record
    assert bench.baseline().passed
    seen = {}

    def look(_arguments: Sequence[str], cwd: Path) -> None:
        seen.update({path.name: path.read_text() for path in (cwd / "snapshots").rglob("*.txt")})

    bench.script.before = look
    bench.script.checks.clear()
    assert bench.examine(candidate()).passed
    assert seen == {"layouts.txt": "baseline", "own.txt": "theirs"}


def test_a_target_that_is_no_counter_is_said_at_the_baseline(tmp_path: Path) -> None:
    bench = Bench(tmp_path, target={"metric": "counter:tma.lod.bytes"})
    assert "known are tma.load.bytes" in bench.examine(None).gates[-1].message


@pytest.mark.parametrize(
    ("metric", "more"), [("modelled", ["cost", "model"]), ("counter:tma.load.bytes", ["cost"]), ("measured", [])]
)
def test_the_gates_of_the_target_run_even_if_they_are_not_configured(
    tmp_path: Path, metric: str, more: list[str]
) -> None:
    gates = {"gates": ["compile", "verify"]}
    bench = Bench(tmp_path, judge=gates, target={"metric": metric}, device={"name": "local"})
    assert bench.examine(None).passed
    assert bench.script.ran == ["compile", "verify", *more]


def test_the_counted_call_is_verified_on_the_problems_of_the_target(bench: Bench) -> None:
    """A kernel could leave out its work on these alone, which the other gates do not run."""
    finding = {"kind": "mismatch", "message": "4 of 4 elements are wrong"}
    bench.script.cost = {"status": "failed", "findings": [finding]}
    found = bench.examine(candidate())
    assert (found.passed, found.gates[-1].gate, found.gates[-1].outcome) == (False, "cost", "failed")
    assert "4 of 4 elements are wrong" in found.gates[-1].message
    assert "--verify" in bench.script.commands[-1]
    bench.script.cost = {"findings": [finding]}
    assert not bench.examine(candidate()).passed


def test_a_remote_is_reserved_and_settled_and_its_loss_is_infrastructure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_nvfp4.loop.judge.judge.container_price", lambda *_: 3.6)
    remote = {"remote": "modal", "containers": 2, "timeout_s": 1000.0}
    bench = Bench(tmp_path, judge=remote, budget={"dollars": 20})
    bench.script.remote = {"usd": 0.25, "failure": None}
    found = bench.examine(None)
    assert (found.passed, found.usd) == (True, 0.25)
    (reserved, settled) = bench.purse.calls
    assert (reserved[0], round(reserved[2], 1), settled) == ("reserve", 2.0, ("settle", 0.0, 0.25))
    (simulated,) = [command for command in bench.script.commands if "--nvfp4-check=verify" in command]
    assert "--nvfp4-remote=modal" in simulated
    assert "--nvfp4-device=sim" in simulated
    seconds = dict(each.split("=") for each in simulated if "timeout=" in each)
    assert float(seconds["--nvfp4-remote-timeout"]) > float(seconds["--nvfp4-device-timeout"]), "a hang is the kernel's"
    assert any(
        each.startswith("--nvfp4-remote-max-cost=1.9") or each == "--nvfp4-remote-max-cost=2" for each in simulated
    )
    bench.script.remote = {"usd": 0.1, "failure": "the connection broke"}
    assert "the connection broke" in bench.examine(candidate()).infrastructure
    bench.script.ends["tmem"] = ended(-9)
    bench.purse.calls.clear()
    assert bench.examine(candidate()).usd > 1.9, "what a lost run has cost is unknown, so it is the worst case"
    bench.purse.ceiling = 0.5
    with pytest.raises(BudgetError):
        bench.examine(candidate())
