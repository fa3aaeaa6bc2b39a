"""The kernel of a ``races`` check: run in the simulator under one schedule or several."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import DEVICES, Devices
from pytest_nvfp4.plugin.failure import CheckFailure, finding_lines
from pytest_nvfp4.plugin.kernel import KernelUnderTest, warn_of
from pytest_nvfp4.plugin.running import kernel_spec
from pytest_nvfp4.plugin.state import Case, Run

if TYPE_CHECKING:
    from pytest_nvfp4.device import job
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.toolchain.request import Entry

RACES = "races"
"""The name of the check."""
_ABOUT = frozenset({"race", "proxy", "tensormap"})
_EARLY = frozenset({"uninitialised", "in-flight"})
"""Faults of a reader that came too soon: another schedule may show whom it did not wait for."""
_FAMILY = "gpumode"
_WARP = re.compile(r"^  CTA \([\d, ]+\), warp (\d+)", re.MULTILINE)
_SEARCHED = 8
"""Warps that are made to come late, one after the other."""
_MOST_FINDINGS = 6


@dataclass(frozen=True)
class RaceCase(Case):
    """A case that is watched for races.

    Attributes:
        traced: The case whose trace says what the kernel is.
    """

    traced: Case | None = None


def race_cases(run: Run, devices: Devices, cases: Iterable[Case]) -> list[RaceCase]:
    """The cases of the races check: one small problem of each configuration, or all that are verified.

    Small is the problem with the fewest multiplications of those the kernel is compiled for. A kernel with an entry is
    run by its ``exercise``, once, if it has one. Without the simulator, or with ``--nvfp4-races=off``, there are none.
    """
    if not devices.options.simulates or devices.options.races == "off":
        return []
    from pytest_nvfp4.problem import GPUMODE

    first: dict[str, list[Case]] = {}
    made: list[RaceCase] = []
    for case in cases:
        if case.trouble is not None:
            continue
        if case.settings.entry is None:
            first.setdefault(case.settings.name, []).append(case)
        elif case.settings.exercise is not None and not any(one.settings == case.settings for one in made):
            made.append(RaceCase(case.path, case.settings, case.problem, case.settings.name, traced=case))
    for traced in first.values():
        settings = traced[0].settings
        own = {case.problem: case for case in traced}
        problems: tuple[Problem, ...] = tuple(run.chosen_problems or settings.simulate or own)
        if devices.options.races == "all":
            problems = tuple(run.chosen_problems or settings.verify or GPUMODE)
        else:
            problems = (min(problems, key=_work),)
        for problem in problems:
            label = "-".join(part for part in (settings.name, problem.name) if part)
            made.append(RaceCase(traced[0].path, settings, problem, label, traced=own.get(problem, traced[0])))
    return made


def _work(problem: Problem) -> int:
    return sum(group.m * group.n * group.k for group in problem.groups)


class KernelRaces:
    """Watches the kernel of a check item."""

    def __init__(self, item: pytest.Item, run: Run, case: RaceCase) -> None:
        self._item = item
        self._run = run
        self._case = case
        self._devices = item.config.stash[DEVICES]

    def check(self) -> None:
        """Run the kernel under every schedule that is wanted.

        Raises:
            CheckFailure: a race, or a schedule under which the kernel does something wrong.
        """
        spec, base = self._spec()
        for schedule in self._schedules():
            done = self._devices.races(spec, self._job_case(), schedule, base=base)
            if done is None:
                continue
            self._warn(done)
            if done.errors or done.status != "passed":
                self._fail(done, schedule, spec, base)

    def find_out(self) -> None:
        """Run what ``check`` will ask for; the devices keep what was found."""
        spec, base = self._spec()
        for schedule in self._schedules():
            done = self._devices.races(spec, self._job_case(), schedule, base=base)
            if done is not None and (done.errors or done.status != "passed"):
                break

    def _spec(self) -> tuple[job.KernelSpec, Path]:
        trace = KernelUnderTest(self._item, self._run, self._case.traced or self._case).compiled_or_skip()
        return kernel_spec(self._case, trace, entry=self._exercise())

    def _schedules(self) -> list[str]:
        options = self._devices.options
        if options.schedule is not None:
            return [options.schedule]
        return ["eager", *(str(seed) for seed in range(1, options.schedules + 1))]

    def _exercise(self) -> Entry | None:
        """What is called in place of ``custom_kernel``. Raises CheckFailure."""
        from pytest_nvfp4.toolchain.request import Entry, EntryError

        text = self._case.settings.exercise
        if text is None:
            return None
        try:
            return Entry.parse(text, root=self._run.options.root, source=f"{self._run.settings.file}, exercise")
        except EntryError as error:
            raise CheckFailure(str(error), file=str(self._case.path)) from error

    def _job_case(self) -> job.JobCase:
        from pytest_nvfp4.device.job import JobCase, ProblemSpec

        if self._case.settings.exercise is not None:
            return JobCase(problem=ProblemSpec(name="inputs of its own", sizes=(), seed=0), family=_FAMILY)
        return JobCase(problem=ProblemSpec.of(self._case.problem), family=_FAMILY)

    def _warn(self, done: SimulationResult) -> None:
        for finding in done.findings:
            if finding.kind == "race-warning":
                warn_of(finding, self._item, self._run)

    def _fail(self, done: SimulationResult, schedule: str, spec: job.KernelSpec, base: Path) -> None:
        errors = list(done.errors)
        if not any(finding.kind in _ABOUT for finding in errors):
            if schedule == "eager" and self._case.settings.exercise is None:
                self._leave_to_others(errors)
            found = self._later(errors, spec, base)
            if found is not None:
                raise self._failure(*found)
        raise self._failure(done, schedule)

    def _later(self, errors: list[Finding], spec: job.KernelSpec, base: Path) -> tuple[SimulationResult, str] | None:
        """Where a warp read what was not there yet: a schedule in which it comes late, and the race that it shows."""
        late: list[int] = []
        for _ in range(_SEARCHED):
            early = next((finding for finding in errors if finding.kind in _EARLY), None)
            place = _WARP.search(early.message) if early is not None else None
            if place is None or int(place[1]) in late:
                return None
            late.append(int(place[1]))
            schedule = "late-" + "-".join(map(str, sorted(late)))
            done = self._devices.races(spec, self._job_case(), schedule, base=base)
            if done is None:
                return None
            errors = list(done.errors)
            if any(finding.kind in _ABOUT for finding in errors):
                return done, schedule
        return None

    def _leave_to_others(self, errors: list[Finding]) -> None:
        """What is wrong in the plain run, and no matter of order, is told by the verify check."""
        if any(finding.kind in _EARLY or finding.kind == "deadlock" for finding in errors):
            return
        for item in self._item.session.items:
            if item.parent is self._item.parent and item.name == f"verify[{self._case.label}]":
                pytest.skip(f"what it does is wrong: see {item.nodeid}")
        pytest.skip("what it does is wrong, and not by a race: the verify check says how")

    def _failure(self, done: SimulationResult, schedule: str) -> CheckFailure:
        errors = sorted(done.errors or done.findings, key=lambda finding: finding.kind not in _ABOUT)
        if any(finding.kind in _ABOUT for finding in errors):
            errors = [finding for finding in errors if finding.kind != "deadlock"] or errors
        named = f"the {schedule} schedule" if not schedule.isdecimal() else f"the schedule of seed {schedule}"
        lines = finding_lines(errors, self._run, most=_MOST_FINDINGS)
        lines.append(f"{done.status} on {done.case.problem.name}, simulated under {named}")
        if done.stderr.strip() and done.status in ("crashed", "error", "timeout"):
            lines.append("the kernel last wrote to stderr:")
            lines += [f"    {line}" for line in done.stderr.strip().splitlines()[-6:]]
        if schedule != "eager":
            lines.append(f"to see it again: pytest {self._item.nodeid!r} --nvfp4-schedule={schedule}")
        place = next((finding for finding in errors if finding.file), None)
        file = place.file if place is not None else None
        return CheckFailure("\n".join(lines), file=file or str(self._case.path), line=place.line if place else None)
