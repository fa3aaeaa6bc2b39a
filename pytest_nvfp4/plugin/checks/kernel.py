"""The kernel of a check item: its trace, its files for a device, and its simulation."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.plugin.accepted import ACCEPTANCE, WARNED, Acceptance
from pytest_nvfp4.plugin.causes import CAUSES, REFERS
from pytest_nvfp4.plugin.checks.base import CheckItem, Preparation
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.failure import CheckFailure, KernelWarning, described, not_compiled, warn_of
from pytest_nvfp4.plugin.fitted import FITTED, FITTED_PROBLEMS
from pytest_nvfp4.plugin.places import safe_name
from pytest_nvfp4.plugin.record import ESTABLISHED, EVIDENCE, VALUES
from pytest_nvfp4.plugin.remote import RemoteRun
from pytest_nvfp4.plugin.simulations import SIMULATIONS
from pytest_nvfp4.plugin.state import RUN, KernelCase, Run
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.text import printed
from pytest_nvfp4.toolchain.request import Entry, EntryError
from pytest_nvfp4.writing import write_whole

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pytest_nvfp4.device.fitted_problem import FittedProblem
    from pytest_nvfp4.device.job import JobCase, KernelSpec
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.device.verdict import CaseVerdict
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.toolchain.trace import Trace

_TRACED = pytest.StashKey[set[tuple[Path, str]]]()
"""Kernels and configurations whose trace an item has added to its evidence."""
_Judged = TypeVar("_Judged", "SimulationResult", "CaseVerdict")
_FAMILY = "gpumode"
"""Input family of a simulation whose values do not matter, because it is generated quickly."""


def job_case(problem: Problem, family: str = _FAMILY) -> JobCase:
    """Return the case of a job: a problem with an input family."""
    from pytest_nvfp4.device.job import JobCase, ProblemSpec

    return JobCase(problem=ProblemSpec.of(problem), family=contract_of(problem).family(family))


def fitted_preparation(item: CheckItem) -> Preparation:
    """Return the work that finds the fitted problem of an item."""
    return Preparation((FITTED, item.case.path, item.case.settings.name), KernelUnderTest(item).fitted)


class KernelUnderTest:
    """The kernel of a check item, with the item, its case, the run's options and settings, and its devices."""

    _making: ClassVar = threading.Lock()

    def __init__(self, item: CheckItem) -> None:
        self.item = item
        self.case = item.case
        self.run: Run = item.config.stash[RUN]
        self.devices = item.config.stash[DEVICES]

    def fitted(self) -> FittedProblem | None:
        """Return the problem fitted to the kernel, if the item runs on it.

        The first item of a kernel that requires it measures the kernel; see `device.fitted_problem`.

        Raises:
            CheckFailure: The kernel did not compile.
        """
        if self.case.variant != FITTED:
            return None
        trace = self.trace()
        spec, base = self.spec(trace)
        compiled = [case.problem for case in self._configured()]
        fallback = min(compiled, key=lambda problem: problem.work)
        raced = any(case.variant == FITTED for case in self._raced())
        ahead = not trace.values  # CUDA C++ and PTX: no layouts are captured
        problems = self.item.config.stash[FITTED_PROBLEMS]
        return problems.of(spec, fallback=fallback, raced=raced, ahead=ahead, base=base)

    def _raced(self) -> list[KernelCase]:
        """Return the cases of this configuration that items of this process search for races."""
        if self.devices.shared or self.devices.options.trace is not None:  # a search for races writes no timeline
            return []
        return [
            case
            for item in self.item.session.items
            if isinstance(item, CheckItem) and item.parent is self.item.parent and not item.may_be_skipped
            for case in item.check.needs(item).raced
            if case.settings == self.case.settings
        ]

    def _configured(self) -> list[KernelCase]:
        """Return the cases that this configuration is compiled for."""
        cases = self.run.cases(self.case.path, named=False)
        return [case for case in cases if case.settings.name == self.case.settings.name] or [self.case]

    @property
    def problem(self) -> Problem:
        """The problem of the item. Raises CheckFailure as `fitted` does."""
        fitted = self.fitted()
        return self.case.problem if fitted is None else fitted.problem

    def compiled(self) -> Trace:
        """Return the trace of the kernel.

        Raises:
            CheckFailure: It did not compile; the text has the findings with the kernel's own lines.
        """
        if self.case.error:
            raise CheckFailure(self.case.error, file=str(self.case.path))
        try:
            trace = self.run.trace(self.case.trace_case)
        except (EntryError, ProblemError) as error:
            raise CheckFailure(str(error), file=str(self.case.path)) from error
        if not trace.ok:
            raise not_compiled(trace, self.run)
        self._show_trace(trace)
        return trace

    def compile_failure(self) -> CheckFailure | None:
        """Return the failure of a kernel that does not compile; None if it compiles."""
        try:
            self.compiled()
        except CheckFailure as failure:
            return failure
        return None

    def trace(self) -> Trace:
        """Return the trace of the kernel; skip the item if another item of this run reports the compile error.

        That is the compile item of the same problem, or of another problem of this configuration that does not compile
        either: a check on a device has problems of its own.

        Raises:
            CheckFailure: The kernel did not compile, and no other item reports that.
        """
        try:
            return self.compiled()
        except CheckFailure:
            label = self.case.trace_case.label
            reporting = self.item.siblings(self.item.check.compile_errors_reported_by)
            for item in sorted(reporting, key=lambda item: item.case.label != label):
                if item.case.label == label or KernelUnderTest(item).compile_failure() is not None:
                    self.refer_to(item, "it did not compile")
            raise

    def spec(self, trace: Trace | None = None) -> tuple[KernelSpec, Path]:
        """Return the kernel as jobs carry it, and the folder that its paths are relative to.

        Args:
            trace: Its trace, which lists the files it depends on; `trace` otherwise.

        Raises:
            CheckFailure: Its files cannot be read.
        """
        from pytest_nvfp4.device.job import KernelSpec

        trace = trace or self.trace()
        entry = self._called()
        try:
            return KernelSpec.from_files(
                self.case.path,
                others=[Path(path) for path in trace.dependencies],
                entry=None if entry is None else entry.function,
                entry_file=None if entry is None else entry.file,
                **self.case.settings.of_job,
                others_sha256=trace.others_sha256,
            )
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise CheckFailure(f"the kernel's files cannot be read: {error}", file=str(self.case.path)) from error

    def _called(self) -> Entry | None:
        """Return the function that the user's own contract calls; None for ``custom_kernel``. Raises CheckFailure."""
        if self.case.settings.own_contract is None:
            return None
        try:
            return self.run.called(self.case)
        except EntryError as error:
            raise CheckFailure(str(error), file=str(self.case.path)) from error

    def device_spec(self) -> tuple[KernelSpec, Path]:
        """Return `spec` for a device, which also runs a kernel that has nothing to compile (it uses no DSL)."""
        trace = self.run.trace(self.case.trace_case)
        runs = trace.ok or {finding.kind for finding in trace.errors} <= {"no-compile", "run"}
        return self.spec(trace if runs else self.trace())

    def remote_spec(self, remote: RemoteRun) -> KernelSpec | None:
        """Return the kernel for a job that is sent ahead; None if it cannot run there, which its items report."""
        if remote.device.unsupported(self.case.settings.arch) is None:
            with contextlib.suppress(BaseException):  # pytest.skip raises no subclass of Exception
                return self.device_spec()[0]
        return None

    def simulated(self, case: KernelCase | None = None) -> SimulationResult:
        """Return what the kernel does in one call in the simulator; items of one kernel share their simulations.

        Its outputs are not judged. If the simulator does not support the architecture, the item is skipped or fails.

        Args:
            case: The case, one of the item's ``Needs.simulations``; the item's own by default.

        Raises:
            CheckFailure: The kernel did not compile.
        """
        fitted = self.fitted() if case is None else None
        if fitted is not None and self.devices.options.trace is None:
            return fitted.shown  # a page draws a problem that the user named
        spec, base = self.spec()
        others = [
            job_case(case.problem)
            for item in self.item.session.items
            if isinstance(item, CheckItem) and item.parent is self.item.parent and not self.devices.shared
            for case in item.check.needs(item).simulations
            if case.settings == self.case.settings and case.variant != FITTED
        ]
        raced = [job_case(case.problem) for case in self._raced() if case.variant != FITTED]
        simulations = self.item.config.stash[SIMULATIONS]
        problem = self.problem if case is None else case.problem
        done = simulations.simulate(spec, job_case(problem), others=others, raced=raced, base=base)
        if done.call is not None and done.call.detailed:
            self.show("call", done.call, problem, base=base)
        return done

    def defer_wrong_results(self, check: str | None) -> None:
        """Skip the item if an item of the named check reports what this kernel does wrong on the same problem.

        Otherwise it returns, and the calling check has to fail.
        """
        for item in self.item.siblings(check):
            if item.case.label == self.case.label:
                self.refer_to(item, "the kernel fails")

    @property
    def acceptance(self) -> Acceptance:
        """The findings of the item that the settings accept."""
        with self._making:  # an item's preparations run in other threads
            if ACCEPTANCE not in self.item.stash:
                self.item.stash[ACCEPTANCE] = Acceptance(self.case, self.item.check.name, self.run)
            return self.item.stash[ACCEPTANCE]

    def without_accepted(self, done: _Judged) -> _Judged:
        """Return a simulation or verdict without its accepted findings.

        If nothing else was wrong, and everything was judged that this can say, it has passed.
        """
        left = self.acceptance.rest(done.findings)
        if len(left) == len(done.findings):
            return replace(done, findings=type(done.findings)(left))
        right = done.status == "failed" and done.complete and not any(each.severity == "error" for each in left)
        return replace(done, findings=type(done.findings)(left), status="passed" if right else done.status)

    def refer_to(self, item: CheckItem, reason: str) -> None:
        """Skip this item, because another one of this run fails by what is wrong.

        If that one, or the one that it refers to itself, ran in this process and did not fail, or may be skipped, this
        returns, and the calling check has to fail. If it runs later or in another process, the skip stands until the
        end of the run; if it has not failed then, this item fails after all (`Causes.unsettled`).
        """
        nodeid = item.stash.get(REFERS, item.nodeid)
        known = self.item.config.stash[CAUSES].outcome(nodeid)
        if item is self.item or item.may_be_skipped or known not in (None, "failed"):
            return
        self.item.stash[REFERS] = nodeid
        pytest.skip(f"{reason}: see {nodeid}")

    def note(self, line: str) -> None:
        """Add a line to the terminal summary and a property to JUnit."""
        self.item.user_properties.append((self.item.check.note_name, printed(line)))

    def value(self, name: str, value: str) -> None:
        """Add a value to the JSON report (``--nvfp4-json``)."""
        self.item.stash.setdefault(VALUES, {})[name] = value

    def establish(self, text: str) -> None:
        """Add to the reports what the check established, in words."""
        self.item.stash.setdefault(ESTABLISHED, []).append(text)

    def show(self, name: str, found: BaseModel, problem: Problem, *, base: Path | None = None) -> None:
        """Add to the evidence of the item, for a page, what it found in one call on a problem.

        Args:
            name: A field of ``report.evidence.Evidence``.
            found: Its value.
            problem: The problem.
            base: The folder that source files in it are relative to.
        """
        if self.run.options.html is None:
            return
        from pytest_nvfp4.bench.roofline import work_of

        work = work_of(problem)
        self._evidence().update({name: found.model_dump(mode="json"), "problem": problem.name})
        self._evidence().update({"flops": work.flops, "bytes": work.bytes})
        if base is not None:
            self._evidence()["base"] = str(base)

    def _show_trace(self, trace: Trace) -> None:
        """Add a trace to the evidence of the first item of this process that it describes."""
        if self.run.options.html is None:
            return
        shown = self.item.config.stash.setdefault(_TRACED, set())
        key = (self.case.path, self.case.settings.name)
        if key not in shown:
            shown.add(key)
            self._evidence()["trace"] = trace.model_dump(mode="json")

    def _evidence(self) -> dict[str, Any]:
        settings = self.case.settings
        context = {"configuration": settings.name, "arch": settings.arch, "path": str(self.case.path)}
        return self.item.stash.setdefault(EVIDENCE, dict(context))

    def establish_compared(self, what: str) -> None:
        """Add to the reports that something agrees with its snapshot, or was recorded there by this run."""
        done = (
            "recorded in the snapshot by --snapshot-update" if self.run.options.update else "compared with the snapshot"
        )
        self.establish(f"{what} {done}")

    def warn(self, message: str) -> None:
        """Warn of a property of the kernel that fails no check."""
        self.item.warn(KernelWarning(message))

    def warn_of(self, finding: Finding) -> None:
        """Warn of a finding at its line, unless it is accepted; see `failure.warn_of`."""
        for left in self._unaccepted(finding):
            warn_of(left, self.item, self.run)

    def warn_of_trace(self, trace: Trace) -> None:
        """Warn of the warnings in a trace."""
        for finding in trace.findings:
            if finding.severity == "warning":
                for left in self._unaccepted(finding):
                    self.warn(" ".join(described(left, self.run)))

    def _unaccepted(self, warning: Finding) -> list[Finding]:
        """Return a warning if it is not accepted, and add it to the reports."""
        left = self.acceptance.rest([warning])
        self.item.stash.setdefault(WARNED, []).extend(self.acceptance.described(each) for each in left)
        return left

    def write_timeline(self, done: SimulationResult) -> None:
        """Write the timeline of a simulation, with ``--nvfp4-trace``. Raises CheckFailure if it cannot be written."""
        folder = self.devices.options.trace
        if folder is None or done.trace is None:
            return
        name = f"{safe_name(self.item.name)}.json"
        file = folder / Path(self.run.portable(self.case.path)).with_suffix("") / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, done.trace.decode())
        except OSError as error:
            raise CheckFailure(f"the timeline {file} cannot be written: {error}", file=str(self.case.path)) from error
