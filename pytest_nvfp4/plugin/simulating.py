"""The kernel of a check item that runs in the simulator, whatever devices there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.devices import COVERAGE_LINE, DEVICES, Devices
from pytest_nvfp4.plugin.failure import CheckFailure, finding_lines
from pytest_nvfp4.plugin.kernel import KernelUnderTest, item_name, warn_of
from pytest_nvfp4.plugin.places import safe_name
from pytest_nvfp4.plugin.running import kernel_spec
from pytest_nvfp4.plugin.state import Case, Run
from pytest_nvfp4.plugin.writing import write_whole

if TYPE_CHECKING:
    from pytest_nvfp4.device import job
    from pytest_nvfp4.device.result import SimulatedCall
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.toolchain.trace import Trace

COVERAGE, COST = "coverage", "cost"
"""The names of the checks."""
_FAMILY = "gpumode"
"""Inputs of the one call: what is counted must not depend on values, and these are quickly made."""
_ABOUT_COVERAGE = frozenset({"never-written", "written-by-two"})
_MOST_FINDINGS = 8


@dataclass(frozen=True)
class SimulatedCase(Case):
    """A case of which the simulator counts what it does.

    Attributes:
        traced: The case whose trace says what the kernel is; of the same problem, if that is traced.
    """

    traced: Case | None = None


def simulated_cases(run: Run, devices: Devices, cases: Iterable[Case]) -> list[SimulatedCase]:
    """The cases of the checks that count what a kernel does: every problem it is compiled for, or those it names.

    A kernel with an entry cannot be run. Without the simulator (``--nvfp4-device=none``, or a device that was named)
    there are none.
    """
    if not devices.options.simulates:
        return []
    by_settings: dict[str, list[Case]] = {}
    for case in cases:
        if case.settings.entry is None and case.trouble is None:
            by_settings.setdefault(case.settings.name, []).append(case)
    made = []
    for traced in by_settings.values():
        settings = traced[0].settings
        own = {case.problem: case for case in traced}
        for problem in run.chosen_problems or settings.simulate or own:
            label = "-".join(part for part in (settings.name, problem.name) if part)
            case = own.get(problem, traced[0])
            made.append(SimulatedCase(case.path, settings, problem, label, traced=case))
    return made


class KernelInSimulator:
    """Runs the kernel of a check item once in the simulator; items of one kernel share their runs."""

    def __init__(self, item: pytest.Item, run: Run, case: SimulatedCase) -> None:
        self._item = item
        self._run = run
        self._case = case
        self._devices = item.config.stash[DEVICES]

    @property
    def tolerance(self) -> tuple[tuple[str, float], ...]:
        """The user's tolerances of costs."""
        return self._case.settings.cost_tolerance

    def coverage(self) -> None:
        """Check who wrote the outputs, and note a line about the CTAs.

        Raises:
            CheckFailure: an element was never written, or by two CTAs, or the kernel does something else that is wrong.
        """
        _, done = self._done()
        about = [finding for finding in done.errors if finding.kind in _ABOUT_COVERAGE]
        others = [finding for finding in done.errors if finding.kind not in _ABOUT_COVERAGE]
        if done.call is not None and done.call.launches:
            self._item.user_properties.append((COVERAGE_LINE, coverage_line(done.call)))
        if about:
            raise self._failure([*others, *about], done)
        if others or done.call is None or done.status not in ("passed", "failed"):
            self._say_once(f"verify[{self._case.label}]", others, done)
        for finding in done.findings:
            if finding.kind == "written-twice":
                warn_of(finding, self._item, self._run)

    def counted(self) -> tuple[Trace, SimulatedCall, Problem]:
        """The trace of the kernel, what its call did, and its problem.

        Raises:
            CheckFailure: the kernel does something wrong, so that its costs mean nothing.
        """
        trace, done = self._done()
        others = [finding for finding in done.errors if finding.kind not in _ABOUT_COVERAGE]
        if others or done.call is None or done.status not in ("passed", "failed"):
            self._say_once(item_name(COVERAGE, self._case), others, done)
        assert done.call is not None
        return trace, done.call, self._case.problem

    def find_out(self) -> tuple[Trace, SimulationResult]:
        """Run what the checks will ask for; the devices keep what was found."""
        trace = KernelUnderTest(self._item, self._run, self._case.traced or self._case).compiled_or_skip()
        spec, base = kernel_spec(self._case, trace)
        others = [] if self._devices.shared else self._others()
        return trace, self._devices.simulate(spec, _job_case(self._case), others=others, base=base)

    def _done(self) -> tuple[Trace, SimulationResult]:
        trace, done = self.find_out()
        write_trace(self._devices, self._run, self._case.path, self._item.name, done)
        if done.call is not None and not done.call.launches and not done.errors:
            pytest.skip("no kernel was launched, so that there is nothing to count")
        return trace, done

    def _others(self) -> list[job.JobCase]:
        """The cases of the other items of the same kernel and configuration that this run will come to."""
        return [
            _job_case(case)
            for item in self._item.session.items
            if item.parent is self._item.parent and item.name.partition("[")[0] in (COVERAGE, COST)
            if isinstance(case := getattr(item, "case", None), SimulatedCase)
            if case.settings == self._case.settings
        ]

    def _say_once(self, name: str, errors: list[Finding], done: SimulationResult) -> None:
        """Fail because the kernel does something wrong, or point to the item of this run that says so."""
        for item in self._item.session.items:
            if item.parent is self._item.parent and item.name == name and item is not self._item:
                pytest.skip(f"what it does is wrong: see {item.nodeid}")
        raise self._failure(errors or list(done.findings), done)

    def _failure(self, findings: list[Finding], done: SimulationResult) -> CheckFailure:
        lines = finding_lines(findings, self._run, most=_MOST_FINDINGS)
        lines.append(f"{done.status} on {done.case.problem.name}, simulated")
        if done.call is not None and done.call.launches:
            lines.append(coverage_line(done.call))
        if done.stderr.strip() and done.status in ("crashed", "error", "timeout"):
            lines.append("the kernel last wrote to stderr:")
            lines += [f"    {line}" for line in done.stderr.strip().splitlines()[-6:]]
        place = next((finding for finding in findings if finding.file), None)
        file = place.file if place is not None else None
        return CheckFailure("\n".join(lines), file=file or str(self._case.path), line=place.line if place else None)


def coverage_line(call: SimulatedCall) -> str:
    """The CTA map of a call in a line: CTAs, tiles, waves, and CTAs that wrote nothing."""
    writing = [launch for launch in call.launches if launch.writers is not None]
    if not writing:
        return f"no launch of {len(call.launches)} wrote an output"
    tiles = sum(output.tiles for output in call.outputs)
    parts = []
    for launch in writing:
        waves = launch.waves(call.sms)
        idle = launch.ctas - (launch.writers or 0)
        parts.append(
            f"{_many(launch.ctas, 'CTA')}, {_many(waves, 'wave')} on {call.sms} SMs ({launch.ctas_per_sm} an SM), "
            + (f"{_many(idle, 'CTA')} wrote no output" if idle else "every CTA wrote output")
        )
    elements = sum(output.elements for output in call.outputs)
    twice = sum(output.twice for output in call.outputs)
    said = f"{_many(tiles, 'tile')} of C, {elements} elements"
    if twice:
        said += f", {twice} of them written more than once by one CTA"
    if len(call.launches) > len(writing):
        said += f"; {_many(len(call.launches) - len(writing), 'launch', 'launches')} that wrote no output"
    return f"{'; '.join(parts)}; {said}"


def _many(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _job_case(case: Case) -> job.JobCase:
    from pytest_nvfp4.device.job import JobCase, ProblemSpec

    return JobCase(problem=ProblemSpec.of(case.problem), family=_FAMILY)


def write_trace(devices: Devices, run: Run, kernel: Path, name: str, done: SimulationResult) -> None:
    """Write the timeline of a check where ``--nvfp4-trace`` says.

    Raises:
        CheckFailure: it cannot be written.
    """
    folder = devices.options.trace
    if folder is None or done.trace is None:
        return
    file = folder / Path(run.portable(kernel)).with_suffix("") / f"{safe_name(name)}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, done.trace.decode())
    except OSError as error:
        raise CheckFailure(f"the timeline {file} cannot be written: {error}", file=str(kernel)) from error
