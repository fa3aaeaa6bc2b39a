"""``races``: no result of the kernel depends on the order in which its threads run.

The kernel runs in the simulator, which orders the accesses to shared, tensor and global memory by happens-before (PTX
ISA, memory consistency model). Two accesses to the same bytes, of which one writes, must be ordered by a barrier, an
mbarrier, a wait for an async group, or a flag. Data that the generic proxy wrote and the async proxy reads needs a
proxy fence in addition. A right result of one run proves none of this. ``--nvfp4-schedules=N`` tries N random schedules
in addition. The kernel is called again on the same inputs; calls whose launches are unlike those of the calls before
are checked too (``device.worker.later_calls``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_nvfp4.plugin.checks.base import Check, CheckItem, CollectedKernel, Needs, Preparation
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, job_case
from pytest_nvfp4.plugin.checks.unlaunched import skip_without_launch
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at, finding_lines, simulated_stderr
from pytest_nvfp4.plugin.fitted import FITTED
from pytest_nvfp4.plugin.simulations import SIMULATIONS
from pytest_nvfp4.plugin.state import KernelCase
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.schedules import WORDS, is_schedule
from pytest_nvfp4.text import plural

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.finding import Finding

_RACES = frozenset({"race", "proxy", "tensormap"})
"""Kinds of findings that are this check's subject."""
_TOO_EARLY = frozenset({"uninitialised", "in-flight"})
"""Faults of a reader that ran before the writer. Another schedule may show which writer it did not wait for."""
_WARP = re.compile(r"^  CTA \([\d, ]+\), warp (\d+)", re.MULTILINE)
"""The warp of a finding, as the simulator writes it."""
_OF_ORDER = _TOO_EARLY | {"deadlock"}
"""Findings that depend on the order of work."""
_OF_PROCESS = frozenset({"timeout", "crash", "cheat", "internal"})
"""Findings about the end of one process. The verify check has processes of its own, which may have ended well."""
_COMPARED = ("eager", "lazy", "1")
"""Schedules whose outputs show whether a wrong value depends on the order of work."""
_WARPS_DELAYED = 8
_FINDINGS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """Options of the check.

    Attributes:
        problems: ``small`` for the problem fitted to each kernel, ``all`` for those that are verified too, or ``off``.
        schedules: Number of random schedules in addition to the eager one.
        schedule: The only schedule; None for the eager one and the random ones.
        warnings: Warn of synchronisation that the PTX ISA requires and official kernels omit.
    """

    problems: Literal["all", "small", "off"]
    schedules: int
    schedule: str | None
    warnings: bool

    @property
    def names(self) -> list[str]:
        """The schedules to run."""
        if self.schedule is not None:
            return [self.schedule]
        return ["eager", *(str(seed) for seed in range(1, self.schedules + 1))]


class RacesCheck(Check):
    """The check of a kernel's synchronisation."""

    name = "races"
    help = "no two accesses race, and every schedule that is tried gives the right result (simulated)"
    stage = 50
    summary_title = "races (simulated)"
    wrong_results_reported_by = "verify"
    options: RaceOptions

    def add_options(self, parser: pytest.Parser) -> None:
        """Declare the options."""
        group = parser.getgroup("nvfp4")
        group.addoption(
            "--nvfp4-races",
            choices=("all", "small", "off"),
            default="small",
            help="search for races in the simulator, by happens-before: on a small problem fitted to each kernel, "
            "which refills every ring of mbarriers twice (default), also on all that are verified, or not at all",
        )
        group.addoption(
            "--nvfp4-schedules",
            type=int,
            default=0,
            metavar="N",
            help="run the races check under N random schedules in addition, each from a seed (default: 0)",
        )
        group.addoption(
            "--nvfp4-schedule",
            metavar="SEED",
            help="run the races check under this schedule alone: eager, lazy, late-0-3 (warps 0 and 3 run when no "
            "other can), or the seed that a finding named",
        )
        group.addoption(
            "--nvfp4-race-warnings",
            action="store_true",
            help="warn of synchronisation that the PTX ISA requires and official kernels omit: tcgen05.wait::ld, "
            "tcgen05.fence, a commit between MMAs and the tcgen05.cp behind them, fence.mbarrier_init",
        )

    def configure(self, config: pytest.Config) -> None:
        """Read the options. Raises pytest.UsageError."""
        schedules, schedule = config.getoption("--nvfp4-schedules"), config.getoption("--nvfp4-schedule")
        if not 0 <= schedules <= 10_000:
            raise pytest.UsageError(f"--nvfp4-schedules {schedules} must be 0 to 10000")
        if schedule is not None and not is_schedule(schedule):
            raise pytest.UsageError(f"--nvfp4-schedule {schedule!r} must be {WORDS}")
        warnings = bool(config.getoption("--nvfp4-race-warnings"))
        self.options = RaceOptions(config.getoption("--nvfp4-races"), schedules, schedule, warnings)

    def cases(self, kernel: CollectedKernel) -> Iterator[KernelCase]:
        """Yield the problem fitted to each configuration, or also all that are verified.

        If the user names problems to simulate, it is that with the fewest multiplications; of a contract of the user's
        own, all are tried. There are no cases without the simulator.
        """
        if not kernel.device_options.simulates or self.options.problems == "off":
            return
        fitted = list(kernel.fitted_cases())
        yield from fitted
        for cases in kernel.runnable:
            settings = cases[0].settings
            compiled = {case.problem: case for case in cases}
            chosen = kernel.run.chosen(cases[0].path, settings)
            named = chosen or settings.simulate
            if self.options.problems == "all":
                problems: Sequence[Problem] = chosen or settings.verify or settings.kernel_contract.tests
            elif settings.own_contract is not None:
                problems = named or tuple(compiled)
            elif named or not any(case.settings == settings for case in fitted):
                problems = (min(named or tuple(compiled), key=lambda problem: problem.work),)
            else:
                problems = ()
            for problem in problems:
                yield compiled.get(problem, cases[0]).on(problem)

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace and the simulations of all schedules up to the first that fails."""
        key = (self.name, item.case.path, item.case.label)
        races = _Races(KernelUnderTest(item), self.options)
        plain = self.options.names[0] == "eager" and not self.options.warnings
        return Needs(
            (item.case.trace_case,),
            preparations=(Preparation(key, races.first_failure),),
            raced=(item.case,) if plain else (),
        )

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if two accesses race, or if the kernel does something wrong under a schedule.

        The summary says what the fitted problem is for, and which rings another problem does not refill.
        """
        races = _Races(nvfp4_case, self.options)
        failing = races.first_failure(noting=True)
        if failing is not None:
            races.fail(*failing)
        if not races.launched:
            skip_without_launch(nvfp4_case, "to check")
        tried = self.options.names
        which = f" ({tried[0]})" if len(tried) == 1 else ""
        accepted = nvfp4_case.acceptance.records
        found = f"no race but for {plural(len(accepted), 'accepted finding')}" if accepted else "0 races"
        nvfp4_case.establish(f"{plural(len(tried), 'schedule')}{which}, {found} (simulated, by happens-before)")


def races_behind(kernel: KernelUnderTest, case: JobCase, findings: Sequence[Finding]) -> list[Finding]:
    """Return the races by which a kernel under GPU MODE's contract fails on a case; empty if there are none.

    Args:
        kernel: The kernel.
        case: The case that failed.
        findings: How it failed. A deadlock and a read that came too early follow from a race. Anything else does not
            if the outputs are the same under each schedule that is tried.

    Raises:
        CheckFailure: The kernel did not compile.
    """
    of_order = any(finding.kind in _OF_ORDER for finding in findings)
    return _Races(kernel, RaceOptions("all", 0, None, warnings=False), case).behind(of_order=of_order)


class _Races:
    """The simulations of one item, or of one case.

    Attributes:
        launched: Whether a kernel was launched in every simulation of `first_failure`.
    """

    def __init__(self, kernel: KernelUnderTest, options: RaceOptions, case: JobCase | None = None) -> None:
        self._kernel, self._options, self._case = kernel, options, case
        self.launched = True

    def first_failure(self, *, noting: bool = False) -> tuple[SimulationResult, str] | None:
        """Return the first result that is not right, and its schedule. Raises CheckFailure.

        Args:
            noting: Whether to warn of race warnings, and to note what the problem reaches.
        """
        spec, base = self._spec()
        fitted = self._kernel.fitted()
        if noting and fitted is not None:
            self._kernel.note(str(fitted))
        others = () if fitted is None or self._case is not None else fitted.others
        for schedule in self._options.names:
            for problem in (None, *others):
                done = self._simulate(spec, base, schedule, problem)
                if noting:
                    self._note(done, schedule)
                self.launched &= done.call is not None and bool(done.call.launches)
                if done.errors or done.status != "passed":
                    return done, schedule
        return None

    def behind(self, *, of_order: bool) -> list[Finding]:
        """Return the races of the eager schedule, or of one that delays what read too early; see `races_behind`."""
        failing = self.first_failure()
        if failing is not None and not any(finding.kind in _RACES for finding in failing[0].errors):
            failing = self._delayed(failing[0].errors)
        if failing is None or not (of_order or self._depends_on_order()):
            return []
        return [finding for finding in failing[0].errors if finding.kind in _RACES]

    def _depends_on_order(self) -> bool:
        """Return whether the values of outputs differ between schedules."""
        spec, base = self._spec()
        outputs = set()
        for schedule in _COMPARED:
            done = self._simulate(spec, base, schedule)
            outputs.add(tuple(str(error) for error in done.errors if error.kind == "mismatch"))
        return len(outputs) > 1

    def _note(self, done: SimulationResult, schedule: str) -> None:
        """Warn of race warnings; of a problem that is not fitted, note the rings that it does not refill."""
        for finding in done.findings:
            if finding.kind == "race-warning":
                self._kernel.warn_of(finding)
        if schedule == self._options.names[0] and self._kernel.fitted() is None and done.call is not None:
            from pytest_nvfp4.device.ring_counts import not_refilled

            if rings := not_refilled(done.call):
                self._kernel.note(f"not refilled twice: {'; '.join(rings)}")

    def _spec(self) -> tuple[KernelSpec, Path]:
        return self._kernel.spec()

    def _simulate(
        self, spec: KernelSpec, base: Path, schedule: str, problem: Problem | None = None
    ) -> SimulationResult:
        """Return the result under a schedule, on the item's problem or another one, without accepted findings."""
        fitted = self._kernel.fitted()
        done = self._kernel.item.config.stash[SIMULATIONS].races(
            spec,
            self._job_case() if problem is None else job_case(problem),
            schedule,
            warnings=self._options.warnings,
            sms=None if fitted is None else fitted.sms,
            base=base,
        )
        return self._kernel.without_accepted(done)

    def _job_case(self) -> JobCase:
        return job_case(self._kernel.problem) if self._case is None else self._case

    def fail(self, done: SimulationResult, schedule: str) -> None:
        """Raise the failure of a result that is not right.

        Raises:
            CheckFailure: A race, or an error that this check has to report.
            pytest.skip.Exception: The error is no matter of order, and an item of the verify check reports it.
        """
        errors = list(done.errors)
        if not any(finding.kind in _RACES for finding in errors):
            fitted = self._kernel.fitted()
            others = () if fitted is None else fitted.others
            problem = next((other for other in others if job_case(other).problem == done.case.problem), None)
            if problem is None and (alone := self._first_group(schedule)) is not None:
                raise self._failure(alone, schedule)
            if schedule == "eager":
                self._defer(errors)
            if (later := self._delayed(errors, problem)) is not None:
                raise self._failure(*later)
        raise self._failure(done, schedule)

    def _first_group(self, schedule: str) -> SimulationResult | None:
        """Return the result of the first group of the fitted problem alone, if it shows a race.

        A fault on the empty or the ragged group ends the launch, and with it the search for races in the deep one.
        """
        groups = self._kernel.problem.groups[:1]
        if self._kernel.case.variant != FITTED or groups == self._kernel.problem.groups:
            return None
        done = self._simulate(*self._spec(), schedule, Problem(str(groups[0]), groups))
        return done if any(finding.kind in _RACES for finding in done.errors) else None

    def _defer(self, errors: Sequence[Finding]) -> None:
        """Skip the item if an error has nothing to do with order, and an item of another check reports it."""
        if not any(finding.kind in _OF_ORDER | _OF_PROCESS for finding in errors):
            self._kernel.defer_wrong_results(self._kernel.item.check.wrong_results_reported_by)

    def _delayed(
        self, errors: Sequence[Finding], problem: Problem | None = None
    ) -> tuple[SimulationResult, str] | None:
        """Return the result of a schedule that shows a race, and the schedule; None if none is found.

        Args:
            errors: What was found under another schedule.
            problem: The problem that it was found on, if that is not the item's.

        A warp that read data before it was written read too early by luck of the schedule. With that warp delayed, the
        data is there, and happens-before shows that nothing ordered the two accesses. The delayed schedule may make
        another warp read too early, which is then delayed as well.
        """
        spec, base = self._spec()
        delayed: list[int] = []
        for _ in range(_WARPS_DELAYED):
            early = next((finding for finding in errors if finding.kind in _TOO_EARLY), None)
            place = _WARP.search(early.message) if early is not None else None
            if place is None or int(place[1]) in delayed:
                return None
            delayed.append(int(place[1]))
            schedule = "late-" + "-".join(map(str, sorted(delayed)))
            done = self._simulate(spec, base, schedule, problem)
            errors = done.errors
            if any(finding.kind in _RACES for finding in errors):
                return done, schedule
        return None

    def _failure(self, done: SimulationResult, schedule: str) -> CheckFailure:
        findings = sorted(done.errors or done.findings, key=lambda finding: finding.kind not in _RACES)
        if any(finding.kind in _RACES for finding in findings):
            # A deadlock is then a consequence of the race.
            findings = [finding for finding in findings if finding.kind != "deadlock"] or findings
        named = f"the {schedule} schedule" if not schedule.isdecimal() else f"the schedule of seed {schedule}"
        lines = finding_lines(findings, self._kernel.run, most=_FINDINGS_SHOWN)
        lines.append(f"{done.status} on {done.case.problem.name}, simulated under {named}")
        lines += simulated_stderr(done)
        if schedule != "eager":
            lines.append(f"to see it again: pytest {self._kernel.item.nodeid!r} --nvfp4-schedule={schedule}")
        return failure_at(lines, findings, kernel=self._kernel.case.path)
