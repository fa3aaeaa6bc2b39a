"""The ``races`` check: what it tells, under which schedule, and how to see it again."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.plugin.checks.kernel import job_case
from pytest_nvfp4.plugin.checks.races import RaceOptions, _Races
from pytest_nvfp4.plugin.failure import CheckFailure, KernelWarning, warn_of
from pytest_nvfp4.problem import Group, Problem

from .conftest import Project
from .shipped_kernel import SHIPPED
from .simulated import CONTRACT, FILL, OWN, PROBLEM, TABLE, written

pytest.importorskip("torch")
RACY = FILL.replace("cutlass.Float16(1.0)", "c[tile * ROWS + row, lane ^ 32]")
"""Every warp reads what another one writes, and nothing lies between."""
WATCHED = ("k.py", f"--nvfp4-problem={PROBLEM}", "-k", "races", "--nvfp4-device=sim")


@pytest.mark.slow
def test_a_race_names_both_lines_and_how_to_see_it_again(project: Project) -> None:
    ran = written(project, RACY).run(*WATCHED, "--nvfp4-schedule=7")
    said = ran.failures()[f"races[{PROBLEM}]"]
    assert "simulated under the schedule of seed 7" in said
    assert said.startswith("k.py:15: simulated, race: k.py:15 ("), "what is wrong, first: the short summary has a line"
    assert str(project.path) not in said
    assert "race: k.py:15 (" in said
    assert "global memory at C of group 0, row" in said
    assert "--nvfp4-schedule=7" in said.splitlines()[-1] or "--nvfp4-schedule=7" in said


@pytest.mark.parametrize("racing", [None, "one", "other"])
def test_kernels_that_the_fitted_problem_does_not_launch_are_searched(
    racing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Problem(name, (Group(128, 128, k),)) for name, k in (("one", 512), ("other", 768)))
    fitted = SimpleNamespace(others=(one, other), sms=None)
    kernel = SimpleNamespace(fitted=lambda: fitted, spec=lambda: (None, Path()))
    searched = []

    def simulate(*arguments: Any) -> object:
        *_, schedule, problem = arguments
        searched.append((schedule, None if problem is None else problem.name))
        failing = problem is not None and problem.name == racing
        call = SimpleNamespace(launches=(1,))
        return SimpleNamespace(call=call, errors=("race",) * failing, status="failed" if failing else "passed")

    monkeypatch.setattr(_Races, "_simulate", simulate)
    races = _Races(kernel, RaceOptions("small", 1, None, warnings=False))  # type: ignore[arg-type]
    failing = races.first_failure()
    assert (failing is None) == (racing is None)
    if racing is None:
        assert searched == [(schedule, name) for schedule in ("eager", "1") for name in (None, "one", "other")]
    else:
        assert searched[-1] == ("eager", racing)


@pytest.mark.parametrize("on", ["fitted", "other"])
def test_a_warp_that_reads_too_early_is_delayed_on_the_same_problem(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {name: Problem(name, (Group(128, 128, k),)) for name, k in (("fitted", 512), ("other", 768))}
    fitted = SimpleNamespace(others=(problems["other"],), sms=None)
    case = SimpleNamespace(variant=None)
    kernel = SimpleNamespace(fitted=lambda: fitted, spec=lambda: (None, Path()), problem=problems["fitted"], case=case)
    early = Finding("uninitialised", "read too early\n  CTA (0, 0, 0), warp 3, lane 0")

    def simulate(*arguments: Any) -> object:
        _, _, _, schedule, *given = arguments
        asked = problems["fitted"] if given in ([], [None]) else given[0]
        race = asked == problems[on] and schedule == "late-3"
        return SimpleNamespace(errors=(Finding("race", "both"),) if race else (), case=SimpleNamespace(problem=asked))

    monkeypatch.setattr(_Races, "_simulate", simulate)
    monkeypatch.setattr(
        _Races, "_failure", lambda _, done, schedule: CheckFailure(f"{done.case.problem.name} {schedule}")
    )
    races = _Races(kernel, RaceOptions("small", 1, None, warnings=False))  # type: ignore[arg-type]
    done = SimpleNamespace(errors=(early,), case=job_case(problems[on]))
    with pytest.raises(CheckFailure, match=f"^{on} late-3$"):
        races.fail(done, "1")  # type: ignore[arg-type]


def test_a_warning_stands_at_the_users_line(request: pytest.FixtureRequest) -> None:
    """Not at the first line of the kernel, whose text the summary would show."""
    run = SimpleNamespace(relative=lambda path: path.name)
    found = Finding(kind="race-warning", message="said", severity="warning", file="/x/k.py", line=7, text="f(x)")
    with pytest.warns(KernelWarning) as at_its_line:
        warn_of(found, request.node, run)  # type: ignore[arg-type]
    with pytest.warns(KernelWarning, match="said") as at_the_item:
        warn_of(replace(found, line=None), request.node, run)  # type: ignore[arg-type]
    (first,), (second,) = at_its_line, at_the_item
    assert (first.filename, first.lineno, str(first.message)) == ("k.py", 7, "said")
    assert second.filename.endswith("test_races.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        with pytest.raises(CheckFailure, match=r"^k\.py:7: said\n    f\(x\)$"):
            warn_of(found, request.node, run)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_no_order_explains_is_left_to_an_item_that_fails_by_it(project: Project) -> None:
    ran = written(project, FILL).run(*WATCHED, "-rs", "-k", "races or verify")
    ran.outcomes(failed=1, skipped=1, deselected=6)
    assert f"the kernel fails: see k.py::verify[{PROBLEM}]" in ran.text
    alone = project.run(*WATCHED)
    alone.outcomes(failed=1, deselected=7)
    assert "outputs wrong" in alone.failures()[f"races[{PROBLEM}]"]


@pytest.mark.slow
def test_a_process_that_ends_early_is_not_left_to_verify(project: Project) -> None:
    """The verify check has processes of its own, which may end well."""
    ends = FILL.replace(
        "    return [c for", '    if abc[0][2].max() == 1:\n        __import__("os")._exit(3)\n    return [c for'
    )
    ran = written(project, ends).run(*WATCHED)
    ran.outcomes(failed=1, deselected=7)
    assert "the process exited with status 3" in ran.failures()[f"races[{PROBLEM}]"]


def test_it_can_be_left_out(project: Project) -> None:
    ran = written(project, FILL).run("k.py", f"--nvfp4-problem={PROBLEM}", "--nvfp4-races=off", "--co", "-q")
    assert "races" not in ran.text


@pytest.mark.parametrize("name", ["soon", "-3", "late-x"])
def test_no_such_schedule(project: Project, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    ran = written(project, FILL).run("k.py", f"--nvfp4-schedule={name}", "--co", "-q")
    assert ran.code == 4
    assert "must be eager, lazy, late-WARP or a seed" in ran.text + capfd.readouterr().err


def run_own(project: Project, source: str) -> dict[str, str]:
    project.file("contract.py", CONTRACT)
    project.settings(TABLE)
    project.kernel(source=source, entry="compile_it")
    ran = project.run("k.py", "-k", "races or verify or coverage", "--nvfp4-device=sim")
    assert ran.code in (0, 1), ran.text
    return ran.failures()


@pytest.mark.slow
def test_a_kernel_with_an_entry_is_called_by_a_contract_of_its_own(project: Project) -> None:
    assert run_own(project, OWN) == {}


@pytest.mark.slow
def test_a_race_under_a_contract_of_ones_own_is_told(project: Project) -> None:
    said = run_own(project, OWN.replace("    cute.arch.barrier()\n", ""))["races[one]"]
    assert "race: k.py:1" in said
    assert "shared memory bytes" in said


@pytest.mark.slow
def test_a_wrong_result_fails_verify_with_the_element(project: Project) -> None:
    said = run_own(project, OWN.replace("63 - thread", "thread"))["verify[one]"]
    assert "of 64 outputs wrong" in said
    assert "turned[0, " in said


def test_an_entry_without_a_contract_has_no_races_check(project: Project) -> None:
    project.settings(TABLE.replace('contract = "contract.py"\ncall = "k.py::turned"\n', ""))
    project.file("k.py", OWN)
    ran = project.run("k.py", "--nvfp4-device=sim", "--co", "-q")
    assert "k.py::compile" in ran.text
    assert "k.py::races" not in ran.text


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "slots"), [("0", "1"), ("group", "num_groups")])
def test_ctas_of_the_shipped_kernel_share_tensor_maps(project: Project, slot: str, slots: str) -> None:
    """Of one group even with equal bytes; without settings, as in ``pytest k.py``."""
    source = SHIPPED.read_text()
    for old, new, times in (
        ("tensormaps[None, i, cta]", f"tensormaps[None, i, {slot}]", 2),
        ("NUM_TENSORMAPS, num_tiles))", f"NUM_TENSORMAPS, {slots}))", 1),
        ("torch.empty(num_tiles *", "torch.empty(len(rows) *", 1),
    ):
        assert source.count(old) == times
        source = source.replace(old, new)
    project.file("k.py", source)
    (said,) = project.run("k.py", "-k", "races", "--nvfp4-device=sim").failures().values()
    publish = source[: source.index("cpasync.cp_fence_tma_desc_release(")].count("\n") + 1
    assert said.startswith(f"k.py:{publish}: simulated, race: k.py:{publish} in warp 0 of CTA")
    assert "the two CTAs share the map" in said


@pytest.mark.slow
def test_a_skip_stands_only_if_the_other_item_failed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict of an earlier run says that ``verify`` passes; in which order the two run does not matter."""
    from pytest_nvfp4.device.result_cache import VerdictCache

    written(project, FILL)
    monkeypatch.setattr(VerdictCache, "has", lambda *_: True)
    device = ("--nvfp4-device=sim", f"--nvfp4-problem={PROBLEM}", "--junitxml=junit.xml")
    races, verify = f"k.py::races[{PROBLEM}]", f"k.py::verify[{PROBLEM}]"
    for order in ((verify, races), (races, verify)):
        ran = project.run(*order, *device)
        ran.outcomes(failed=1, passed=1)
        assert ran.code == pytest.ExitCode.TESTS_FAILED
        assert f"FAILED {races}" in ran.text
    assert f"not checked: it was skipped because of {verify}, which passed" in ran.text
    assert "<failure" in (project.path / "junit.xml").read_text()


@pytest.mark.slow
def test_a_kernel_that_launches_nothing_is_not_free_of_races(project: Project) -> None:
    """It compiles a kernel, and computes C by operators of torch."""
    honest = Path(__file__).parents[1] / "device" / "kernels" / "honest.py"
    compiles = FILL.replace("custom_kernel", "compile_only").replace("    go(start", "    cute.compile(go, start")
    source = compiles + honest.read_text() + "    return compile_only(data)\n"
    source = source.replace("    return [c for _, _, c in abc]\n    return compile_only", "    return compile_only")
    ran = written(project, source).run(*WATCHED, "-rs")
    ran.outcomes(skipped=1, deselected=7)
    assert "no kernel was launched, so there is nothing to check, and none is on the official problems" in ran.text


@pytest.mark.slow
def test_a_kernel_that_launches_nothing_here_names_the_problem_that_makes_it_launch(project: Project) -> None:
    """Its host code has torch compute groups of small n."""
    honest = Path(__file__).parents[1] / "device" / "kernels" / "honest.py"
    launches = FILL.replace("custom_kernel", "launching")
    compiles = FILL.replace("custom_kernel", "compile_only").replace("    go(start", "    cute.compile(go, start")
    either = "\n\ndef custom_kernel(data):\n    if data[3][0][1] >= 768:\n        return launching(data)\n"
    either += "    compile_only(data)\n    return by_torch(data)\n"
    source = launches + compiles + honest.read_text().replace("def custom_kernel", "def by_torch") + either
    ran = written(project, source).run(*WATCHED, "-rs")
    ran.outcomes(skipped=1, deselected=7)
    assert "nothing to check; gpumode-5 makes it launch: --nvfp4-problem=gpumode-5" in ran.text
