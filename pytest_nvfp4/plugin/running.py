"""The kernel of a check item that runs on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.devices import DEVICES, Devices
from pytest_nvfp4.plugin.failure import CheckFailure, finding_lines
from pytest_nvfp4.plugin.kernel import KernelUnderTest
from pytest_nvfp4.plugin.state import Case, Run

if TYPE_CHECKING:
    from pytest_nvfp4.device import job
    from pytest_nvfp4.device.verdict import CaseVerdict
    from pytest_nvfp4.device.verify import Verification
    from pytest_nvfp4.plugin.collector import CheckItem
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.toolchain.request import Entry
    from pytest_nvfp4.toolchain.trace import Trace

_MOST_FINDINGS = 6


@dataclass(frozen=True)
class DeviceCase(Case):
    """A case that runs on a device.

    Attributes:
        own_shapes: It is about the families that bring their own sizes, instead of about a problem.
    """

    own_shapes: bool = False


def kernel_spec(case: Case, trace: Trace, *, entry: Entry | None = None) -> tuple[job.KernelSpec, Path]:
    """The kernel of a case as a job carries it, with what its trace says it needs, and the folder its paths are
    relative to; ``entry`` is what is called in place of ``custom_kernel``.

    Raises:
        CheckFailure: its files cannot be read.
    """
    from pytest_nvfp4.device.job import KernelSpec

    try:
        return KernelSpec.from_files(
            case.path,
            others=[Path(path) for path in trace.dependencies],
            arch=case.settings.arch,
            entry=None if entry is None else entry.function,
            entry_file=None if entry is None else entry.file,
            compile_options=case.settings.compile_options,
        )
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise CheckFailure(f"the kernel's files cannot be read: {error}", file=str(case.path)) from error


DEVICE_LINE = "nvfp4_device"
"""Name of a report's property that says what the kernel ran on."""


class KernelOnDevice:
    """Runs the kernel of a check item on the device of the run."""

    def __init__(self, item: pytest.Item, run: Run, case: DeviceCase) -> None:
        self._item = item
        self._run = run
        self._case = case
        self._devices = item.config.stash[DEVICES]

    def spec(self) -> tuple[job.KernelSpec, Path]:
        """The kernel as a job carries it, with what its trace says it needs.

        A kernel that does not compile is skipped or fails as for every check; one that has nothing to compile (it does
        not use the DSL) can still be run.
        """
        return kernel_spec(self._case, self._trace())

    def _trace(self) -> Trace:
        """The trace of this configuration, on the first problem it is traced on.

        What a job needs to know of it (its files) does not depend on the problem, and each trace is a compile.
        """
        cases = self._run.cases(self._case.path, named=False)
        case = next((case for case in cases if case.settings == self._case.settings), self._case)
        trace = self._run.trace(case)
        if trace.ok or {finding.kind for finding in trace.errors} <= {"no-compile", "run"}:
            return trace
        return KernelUnderTest(self._item, self._run, case).compiled_or_skip()

    def verify(self) -> None:
        """Verify the kernel on its problem.

        Raises:
            CheckFailure: an output is wrong, or the kernel did not run to its end.
        """
        spec, found, base = self.find_out()
        if (by := found[0][1].device) is not None:
            self._item.user_properties.append((DEVICE_LINE, str(by)))
        bad = [
            (verdict, verification)
            for case, verification in found
            for verdict in verification.verdicts
            if verdict.case == case and verdict.status != "passed"
        ]
        self._write_trace(spec, bad[0][0].case if bad else found[0][0], base=base)
        if bad:
            raise self._failure(bad)

    def find_out(self) -> tuple[job.KernelSpec, list[tuple[job.JobCase, Verification]], Path]:
        """Run what ``verify`` will ask for, and what the checks of other problems will; the devices keep it."""
        self._devices.for_arch(self._case.settings.arch)
        spec, base = self.spec()
        cases = self.job_cases()
        if self._devices.remote is not None:
            self._devices.remote.wait_ahead(self._item)
            others = self._devices.remote.companions(self._item, cases)
        else:
            others = [] if self._devices.shared else self._others()
        return spec, self._devices.verify(spec, cases, others=others, base=base), base

    def _write_trace(self, spec: job.KernelSpec, case: job.JobCase, *, base: Path) -> None:
        """With ``--nvfp4-trace``, the timeline of one call: of a case that went wrong, if there is one."""
        if self._devices.options.trace is None or self._devices.for_arch(spec.arch).name != "sim":
            return
        from pytest_nvfp4.plugin.simulating import write_trace

        done = self._devices.simulate(spec, case, others=(), base=base)
        write_trace(self._devices, self._run, self._case.path, self._item.name, done)

    def benchmark(self, fixture: Any) -> None:
        """Time the kernel on its problem, replay the times into pytest-benchmark, and judge them.

        Raises:
            CheckFailure: an answer was wrong, the times cannot be true, or the kernel is slower than its baseline.
        """
        from pytest_nvfp4.plugin import timing

        if self._devices.shared:
            self._devices.lack(
                "not measured, as test processes run beside each other (-n): run benchmarks without xdist"
            )
        if not timing.wanted(fixture):
            pytest.skip("not measured: pytest-benchmark is disabled (--benchmark-disable)")
        device = self._devices.for_arch(self._case.settings.arch)
        if device.describe().simulated:
            self._devices.lack(self._devices.no_clock(self._case.settings.arch))
        spec, base = self.spec()
        options = self._devices.options
        if self._devices.remote is not None:
            self._devices.remote.wait_ahead(self._item)
        problem, siblings = self._case.problem, self._timed_with()
        others = [one.case.problem for one in siblings if isinstance(one.case, DeviceCase) and not one.may_be_skipped]
        timed = timing.checked(
            *self._devices.stopwatch.time(device, spec, problem, others=others, base=base),
            problem,
            device=device,
            file=self._case.path,
        )
        self._devices.hooks.note(timed.device)
        for warning in timed.warnings:
            self._item.warn(timing.TimingWarning(warning))
        provenance = timing.replay(fixture, timed, self._case.problem, spec)
        comparison = timing.Comparison(self._item, siblings=siblings, threshold=options.threshold)
        verdict, note = comparison.verdict(timed, provenance, self._case.problem.name)
        name = self._run.relative(self._case.path)
        self._devices.rows.append(timing.row(name, self._case.problem, timed, verdict, note))
        geomean = comparison.geomean()
        if geomean is not None:
            self._devices.geomeans[name] = geomean
        if verdict is not None and verdict.state == "slower":
            raise CheckFailure(
                f"slower than the baseline on {timed.device}: {verdict}\n"
                f"the least change that fails is {100 * verdict.threshold:.2g} %; {note or 'same conditions'}\n"
                "if that is meant, save a new baseline with --benchmark-autosave",
                file=str(self._case.path),
            )
        if geomean is not None and geomean.state == "slower":
            raise CheckFailure(
                f"the kernel's problems together are slower than their baselines on {timed.device}: geometric mean "
                f"{geomean}\nif that is meant, save a new baseline with --benchmark-autosave",
                file=str(self._case.path),
            )
        if verdict is not None and verdict.baseline_outdated:
            self._item.warn(
                timing.TimingWarning(f"baseline outdated: {verdict}; save a new one (--benchmark-autosave)")
            )

    def _timed_with(self) -> list[CheckItem]:
        """The benchmark checks of this kernel and configuration in this run, this one among them."""
        from pytest_nvfp4.plugin.checks import BENCHMARK
        from pytest_nvfp4.plugin.collector import CheckItem

        return [
            item
            for item in self._item.session.items
            if isinstance(item, CheckItem)
            and (item.path, item.check) == (self._case.path, BENCHMARK)
            and item.case.settings == self._case.settings
        ]

    def _others(self) -> list[job.JobCase]:
        """The cases of the verify items of the same kernel and configuration that this run will come to."""
        cases: list[job.JobCase] = []
        for item in self._item.session.items:
            case = getattr(item, "case", None)
            if item.parent is not self._item.parent or not item.name.startswith("verify"):
                continue
            if isinstance(case, DeviceCase) and case.settings == self._case.settings:
                cases += self._cases(case)
        return cases

    def job_cases(self) -> list[job.JobCase]:
        """The cases of this item, as a job has them."""
        return self._cases(self._case)

    def _cases(self, case: DeviceCase) -> list[job.JobCase]:
        from pytest_nvfp4.device.job import JobCase, ProblemSpec
        from pytest_nvfp4.numerics.families import default_families
        from pytest_nvfp4.numerics.families import family as family_named

        names = self._devices.options.families
        families = [family_named(name) for name in names] if names else default_families()
        if case.own_shapes:
            return [
                JobCase(problem=ProblemSpec.of(family.shapes), family=family.name)
                for family in families
                if family.shapes is not None
            ]
        problem = ProblemSpec.of(case.problem)
        return [JobCase(problem=problem, family=family.name) for family in families if names or family.shapes is None]

    def _failure(self, bad: list[tuple[CaseVerdict, Verification]]) -> CheckFailure:
        lines: list[str] = []
        verification = bad[0][1]
        if (trouble := _trouble(bad[0][0])) is not None:
            name = self._devices.options.device
            return CheckFailure(f"not run on {name}: {trouble}", file=str(self._case.path))
        said: set[str] = set()
        for verdict, _ in bad:
            new = [finding for finding in verdict.findings if str(finding) not in said]
            said.update(map(str, new))
            if new:
                lines += finding_lines(new, self._run, most=_MOST_FINDINGS)
                lines.append(f"{verdict.status} on {verdict.case.problem.name} with inputs {verdict.case.family!r}")
        device = f"on {verification.device}" if verification.device else "no device answered"
        lines.append(f"{device}; order of calls: seed {verification.order_seed}")
        if verification.stderr.strip():
            lines.append("the kernel last wrote to stderr:")
            lines += [f"    {line}" for line in verification.stderr.strip().splitlines()[-6:]]
        file = next((finding.file for verdict, _ in bad for finding in verdict.findings if finding.file), None)
        line = next((finding.line for verdict, _ in bad for finding in verdict.findings if finding.file), None)
        return CheckFailure("\n".join(lines), file=file or str(self._case.path), line=line)


def _trouble(verdict: CaseVerdict) -> str | None:
    """Why a remote gave no result; None where it gave one."""
    from pytest_nvfp4.device.remote.device import TROUBLE

    return next((finding.message for finding in verdict.findings if finding.kind == TROUBLE), None)


OWN_SHAPES = "own-shapes"
"""Label of the verify check of the families that bring their own sizes (edges, decode probes)."""


def verify_cases(run: Run, devices: Devices, cases: list[Case]) -> list[DeviceCase]:
    """The cases of the verify checks of a kernel: one a problem, and one for the families with sizes of their own.

    With ``--nvfp4-device=none`` there are none.
    """
    if devices.options.device == "none":
        return []
    from pytest_nvfp4.problem import GPUMODE

    made: list[DeviceCase] = []
    for case in _configurations(cases):
        chosen = run.chosen_problems
        made += [_on_device(case, problem, problem.name) for problem in chosen or case.settings.verify or GPUMODE]
        if not chosen and _any_own_shapes(devices.options.families):
            made.append(_on_device(case, GPUMODE[0], OWN_SHAPES, own_shapes=True))
    return made


def _any_own_shapes(families: Sequence[str]) -> bool:
    """Whether one of the input families, of the default ones where none is named, brings sizes of its own."""
    if not families:
        return True
    from pytest_nvfp4.numerics.families import family

    return any(family(name).shapes is not None for name in families)


def benchmark_cases(run: Run, devices: Devices, cases: list[Case]) -> list[DeviceCase]:
    """The cases of the benchmark checks of a kernel; none with ``--nvfp4-device=none``."""
    from pytest_nvfp4.problem import GPUMODE_BENCH

    if devices.options.device == "none":
        return []
    return [
        _on_device(case, problem, problem.name)
        for case in _configurations(cases)
        for problem in run.chosen_problems or case.settings.benchmark or GPUMODE_BENCH
    ]


def _configurations(cases: list[Case]) -> list[Case]:
    """One case of each configuration that can be run: under the contract, and not known to be broken."""
    first: dict[str, Case] = {}
    for case in cases:
        if case.settings.entry is None and case.trouble is None:
            first.setdefault(case.settings.name, case)
    return list(first.values())


def _on_device(case: Case, problem: Problem, label: str, *, own_shapes: bool = False) -> DeviceCase:
    label = "-".join(part for part in (case.settings.name, label) if part)
    return DeviceCase(case.path, case.settings, problem, label, own_shapes=own_shapes)
