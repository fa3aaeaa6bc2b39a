"""Which simulations are run: a search for races that finds nothing serves what counts and what fits a problem."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.device.detail import LaunchDetail
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.replay import Conditions
from pytest_nvfp4.plugin.checks.search import _BatchSimulator
from pytest_nvfp4.plugin.simulations import Simulations
from pytest_nvfp4.plugin.state import RUN
from pytest_nvfp4.plugin.verifications import Verifications
from pytest_nvfp4.problem import Group, Problem
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from tests.device.modelled_kernels import ModelledKernel
from tests.device.remote.fakes import source
from tests.waiting import LONGEST_S

KERNEL = KernelSpec(files=(source(),), main="kernel.py", arch="sm_100a")
A, B = (
    JobCase(problem=ProblemSpec.of(Problem(name, (Group(m, 128, 256, 1),), 1)), family="gpumode")
    for name, m in (("a", 128), ("b", 72))
)


class Jobs:
    """What runs in place of the simulator.

    Attributes:
        run: The names of the cases of each job, and whether it searched for races.
        racy: Names of the problems with a race.
        detailed: Whether each job recorded details.
    """

    def __init__(self) -> None:
        self.run: list[tuple[str, bool]] = []
        self.racy: set[str] = set()
        self.detailed: list[bool] = []

    def __call__(
        self,
        _device: object,
        _kernel: KernelSpec,
        cases: Sequence[JobCase],
        *,
        races: bool = False,
        detailed: bool,
        **_: Any,
    ) -> list[SimulationResult]:
        self.run.append((" ".join(case.problem.name for case in cases), races))
        self.detailed.append(detailed)
        return [self._one(case, races, detailed) for case in cases]

    def _one(self, case: JobCase, races: bool, detailed: bool) -> SimulationResult:
        (done,) = ModelledKernel().observe([Problem(case.problem.name, (Group(128, 128, 256, 1),), 1)], (), None)
        found = races and case.problem.name in self.racy
        findings = (Finding("race", "two writes are not ordered"),) if found else ()
        assert done.call is not None
        assert done.call.launches
        update = {"detail": LaunchDetail() if detailed else None}
        launches = tuple(launch.model_copy(update=update) for launch in done.call.launches)
        call = done.call.model_copy(update={"launches": launches})
        return SimulationResult(case, "failed" if found else "passed", findings, call)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    jobs = Jobs()
    monkeypatch.setattr("pytest_nvfp4.device.simulate.simulate", jobs)
    return jobs


@pytest.fixture
def simulations(tmp_path: Path, jobs: Jobs) -> Simulations:  # noqa: ARG001 - the simulator is replaced first
    return of_run(tmp_path)


def of_run(tmp_path: Path, *, html: Path | None = None) -> Simulations:
    """The simulations of a run with a cache in a folder, which may write a page."""
    run = SimpleNamespace(cache=SimpleNamespace(sealed=SealedFiles(tmp_path)), options=SimpleNamespace(html=html))
    config: Any = SimpleNamespace(stash={RUN: run}, add_cleanup=lambda _: None)
    options = SimpleNamespace(fresh=False, trace=None, timeout_s=1.0, trace_ctas=4)
    devices: Any = SimpleNamespace(
        options=options, require_simulator=lambda _: None, shared=False, simulator=None, jobs=tmp_path
    )
    return Simulations(config, devices)


def searched(simulations: Simulations, case: JobCase, *, sms: int | None = None) -> SimulationResult:
    return simulations.races(KERNEL, case, "eager", warnings=False, sms=sms, base=Path())


@pytest.mark.parametrize("racy", [False, True])
def test_a_search_without_findings_is_a_simulation(simulations: Simulations, jobs: Jobs, racy: bool) -> None:
    jobs.racy = {"a"} if racy else set()
    done = simulations.simulate(KERNEL, A, others=[B], raced=[A], base=Path())
    assert (done.status, done.findings) == ("passed", ())
    assert jobs.run == [("a", True), ("a b" if racy else "b", False)]
    assert searched(simulations, A).status == ("failed" if racy else "passed")
    assert len(jobs.run) == 2, "the search itself is not repeated"


@pytest.mark.parametrize("racy", [False, True])
def test_what_fits_a_problem_reads_the_search(simulations: Simulations, jobs: Jobs, racy: bool) -> None:
    jobs.racy = {"a"} if racy else set()
    done = simulations.observe(KERNEL, [A, B], launch_only=(1,), sms=4, raced=True, base=Path())
    assert [(one.case, one.status) for one in done] == [(A, "passed"), (B, "passed")]
    assert jobs.run == [("a b", True), ("a", False)][: 1 + racy]
    assert searched(simulations, A, sms=4).status == ("failed" if racy else "passed")
    assert len(jobs.run) == 1 + racy
    searched(simulations, A)
    assert jobs.run[-1] == ("a", True), "another device is another simulation"


def test_measurements_on_several_problems_are_not_searched(simulations: Simulations, jobs: Jobs) -> None:
    simulations.observe(KERNEL, [A, B], raced=True, base=Path())
    assert jobs.run == [("a b", False)]


@pytest.mark.parametrize("raced", [False, True])
def test_only_a_page_asks_for_details_and_once(tmp_path: Path, jobs: Jobs, raced: bool) -> None:
    def simulate(html: Path | None) -> SimulationResult:
        return of_run(tmp_path, html=html).simulate(KERNEL, A, others=[], raced=[A] if raced else [], base=Path())

    page = tmp_path / "r.html"
    for html, detailed in ((None, [False]), (None, [False]), (page, [False, True]), (page, [False, True])):
        done = simulate(html)
        assert jobs.detailed == detailed
        assert done.call is not None
        assert done.call.detailed is detailed[-1]
    simulate(None)
    assert len(jobs.run) == 2, "what has details serves every run"


def test_a_call_with_accepted_errors_alone_is_modelled_and_never_stored(
    simulations: Simulations, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, wrong = Finding("uninitialised", "nobody wrote it"), Finding("deadlock", "no warp arrives")
    monkeypatch.setattr("pytest_nvfp4.device.modelled.recordings_of", lambda _: ())
    device, conditions = load_device("b200"), Conditions()

    def modelled(*findings: Finding, accepting: bool) -> ModelledCall | SimulationResult:
        failed = [replace(jobs._one(A, races=False, detailed=False), status="failed", findings=findings)]
        monkeypatch.setattr("pytest_nvfp4.device.simulate.simulate", lambda *_, **__: failed)

        def left(done: SimulationResult) -> SimulationResult:
            return replace(done, findings=tuple(each for each in done.findings if not accepting or each is not read))

        return simulations.modelled(KERNEL, A, device, conditions, base=Path(), without_accepted=left)

    assert isinstance(modelled(read, accepting=True), ModelledCall)
    assert isinstance(modelled(read, accepting=False), SimulationResult), "nothing is stored"
    assert isinstance(modelled(read, wrong, accepting=True), SimulationResult)


@pytest.mark.parametrize("accepting", [True, False])
def test_a_drawn_problem_with_accepted_errors_alone_passes(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, accepting: bool
) -> None:
    read = Finding("uninitialised", "nobody wrote it")
    failed = [replace(jobs._one(A, races=False, detailed=False), status="failed", findings=(read,))]
    monkeypatch.setattr("pytest_nvfp4.device.simulate.simulate", lambda *_, **__: failed)
    problem = Problem("drawn", (Group(1, 128, 256, 1),), 1111)
    options = SimpleNamespace(families=(), timeout_s=1)
    kernel: Any = SimpleNamespace(
        case=SimpleNamespace(problem=problem),
        devices=SimpleNamespace(options=options, simulator=None, jobs=None, simulations_at_once=1),
        without_accepted=lambda done: replace(done, findings=(), status="passed") if accepting else done,
    )
    space: Any = None
    simulator = _BatchSimulator(kernel, KERNEL, Path(), space=space)
    assert simulator.failing([problem]) == [not accepting]


FOUND = Finding("overflow", "an offset overflows")


@pytest.mark.parametrize(("found", "runs"), [([], 1), ([FOUND], 2), (None, 2)])
def test_the_far_end_is_reached_once_and_a_run_without_findings_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[Finding] | None, runs: int
) -> None:
    reached: list[Path] = []

    def overflows(_device: object, _kernel: KernelSpec, *, folder: Path, base: Path) -> list[Finding] | None:
        reached.append(base)
        assert folder == tmp_path
        return found

    monkeypatch.setattr("pytest_nvfp4.device.far_end.overflows", overflows)
    simulations = of_run(tmp_path)
    assert [simulations.far_end(KERNEL, base=tmp_path) for _ in range(2)] == [found, found]
    assert reached == [tmp_path]
    later = of_run(tmp_path)
    assert later.far_end(KERNEL, base=tmp_path) == found
    assert (len(reached), later.cache_hits) == (runs, 2 - runs)


def test_the_fitted_problem_is_verified_beside_the_others(tmp_path: Path) -> None:
    """Each of two jobs waits for the other; a third one on the cases of the first waits for its end."""
    meet = threading.Barrier(2)
    ran: list[str] = []

    class Verifier:
        def verify(self, _kernel: KernelSpec, cases: Sequence[JobCase], **_: Any) -> Any:
            ran.append(" ".join(case.problem.name for case in cases))
            meet.wait(LONGEST_S)
            return SimpleNamespace(device=None, verdicts=())

    simulations = of_run(tmp_path)
    devices: Any = SimpleNamespace(
        device=lambda _: SimpleNamespace(name="gpu"), remote=None, options=SimpleNamespace(fresh=True, seed=None)
    )
    verifications = Verifications(devices, simulations)
    verifications.verifier = lambda _: Verifier()  # type: ignore[method-assign, assignment, return-value]

    def verify(case: JobCase, batch: str) -> Any:
        return verifications.verify(KERNEL, [case], others=[], batch=batch, base=Path())

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(verify, *one) for one in ((A, ""), (B, "fitted"), (A, ""))]
        first, _, again = [job.result(LONGEST_S) for job in jobs]
    assert sorted(ran) == ["a", "b"]
    assert first == again
