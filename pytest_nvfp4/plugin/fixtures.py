"""Fixtures: the kernel of a check item, traces for tests of one's own, and snapshots of layouts and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.failure import CheckFailure, CheckRecord
from pytest_nvfp4.plugin.state import RUN, Case, Run

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.compare import FactSnapshot, LayoutSnapshot
    from pytest_nvfp4.toolchain.trace import Finding, Trace

RECORDS = pytest.StashKey[list[CheckRecord]]()
"""What the checks of an item found, for the reports."""


def describe_findings(trace: Trace, findings: Sequence[Finding]) -> str:
    """Findings as a person reads them, with the place of the debug bundle."""
    lines: list[str] = []
    for finding in findings:
        lines.append(str(finding))
        if finding.kind in ("crash", "vanished", "timeout", "internal") and finding.detail:
            lines.append("  it last wrote to stderr:")
            lines += [f"    {line}" for line in finding.detail.splitlines()[-12:]]
    if trace.bundle:
        lines.append(f"debug bundle: {trace.bundle}")
    return "\n".join(lines)


class KernelUnderTest:
    """The kernel of a check item."""

    def __init__(self, item: pytest.Item, run: Run, case: Case) -> None:
        self._item = item
        self._run = run
        self.case = case

    def trace(self) -> Trace:
        """The kernel's trace; failed or not."""
        from pytest_nvfp4.toolchain.request import EntryError

        try:
            return self._run.trace(self.case)
        except EntryError as error:
            raise CheckFailure(str(error)) from error

    def require_compiled(self) -> Trace:
        """The trace of a kernel that compiled.

        Raises:
            CheckFailure: it did not; the text has the findings with the kernel's own lines.
        """
        trace = self.trace()
        for finding in trace.findings:
            if finding.severity == "warning" and self._item.name.startswith("compile"):
                self._item.warn(KernelWarning(str(finding)))
        if not trace.ok:
            errors = trace.errors
            place = next((finding for finding in errors if finding.file), errors[0])
            raise CheckFailure(describe_findings(trace, errors), file=place.file, line=place.line)
        return trace

    def trace_or_skip(self) -> Trace:
        """The trace, for a check other than ``compile``.

        When the kernel did not compile and its ``compile`` check is part of this run, this check is skipped: one
        defect gives one failure. Otherwise it fails like that check would.
        """
        trace = self.trace()
        if not trace.ok:
            bracket = f"[{self.case.label}]" if self.case.label else ""
            name = f"compile{bracket}"
            parent = self._item.parent
            for item in self._item.session.items:
                if item.parent is parent and item.name == name:
                    pytest.skip(f"it did not compile: see {item.nodeid}")
        return self.require_compiled()


class KernelWarning(pytest.PytestWarning):
    """Something about a kernel that does not fail a check."""

    __module__ = "pytest_nvfp4"


@pytest.fixture
def nvfp4_case(request: pytest.FixtureRequest) -> KernelUnderTest:
    """The kernel that the check item is about; for check items only."""
    case = getattr(request.node, "case", None)
    if not isinstance(case, Case):
        raise pytest.UsageError("nvfp4_case is for check items of kernel files; a test uses nvfp4_trace(PATH)")
    return KernelUnderTest(request.node, request.config.stash[RUN], case)


@dataclass(frozen=True, slots=True)
class TraceFactory:
    """Makes traces for tests: ``nvfp4_trace("kernels/x.py", problem="96x128x256")``."""

    _run: Run
    _base: Path

    def __call__(
        self,
        kernel: str | Path,
        *,
        entry: str | None = None,
        problem: str | None = None,
        arch: str | None = None,
        compile_options: Sequence[str] = (),
        check: bool = True,
    ) -> Trace:
        """Compile a kernel without a device.

        Args:
            kernel: The kernel file, relative to the root.
            entry: ``FILE::FUNCTION`` relative to the root, or the name of a function in the kernel file.
            problem: A problem's name or shape; the first of the kernel's settings otherwise.
            arch: Architecture; what the settings say otherwise.
            compile_options: Options on top of the kernel's own.
            check: Fail the test when the kernel does not compile; False to get the failed trace.

        Raises:
            CheckFailure: it does not compile, or an argument cannot be used.
        """
        from dataclasses import replace

        from pytest_nvfp4.problem import ProblemError
        from pytest_nvfp4.settings import SettingsError
        from pytest_nvfp4.toolchain.request import EntryError

        path = (self._run.options.root / kernel).resolve()
        if not path.is_file():
            raise CheckFailure(f"nvfp4_trace: there is no kernel file {path}")
        try:
            case = self._run.cases(path, named=False)[0]
            settings = case.settings
            if entry is not None:
                settings = replace(settings, entry=entry if "::" in entry else f"{path}::{entry}")
            if arch is not None:
                settings = replace(settings, arch=arch)
            settings = replace(settings, compile_options=settings.compile_options + tuple(compile_options))
            chosen = self._run.settings.resolve_problems([problem])[0] if problem else case.problem
            trace = self._run.trace(replace(case, settings=settings, problem=chosen))
        except (SettingsError, ProblemError, EntryError) as error:
            raise CheckFailure(f"nvfp4_trace({str(kernel)!r}): {error}") from error
        if check and not trace.ok:
            raise CheckFailure(describe_findings(trace, trace.errors))
        return trace


@pytest.fixture(scope="session")
def nvfp4_trace(request: pytest.FixtureRequest) -> TraceFactory:
    """Compile kernels without a device: ``nvfp4_trace(PATH, entry=..., problem=...)`` returns the trace."""
    run = request.config.stash[RUN]
    return TraceFactory(run, run.options.root)


@pytest.fixture
def layout_snapshot(request: pytest.FixtureRequest) -> LayoutSnapshot:
    """Compare a kernel's layouts with the stored snapshot: ``layout_snapshot(trace)`` or ``layout_snapshot(PATH)``."""
    from pytest_nvfp4.plugin.compare import LayoutSnapshot

    factory: TraceFactory = request.getfixturevalue("nvfp4_trace")
    return LayoutSnapshot(request.node, request.config.stash[RUN], factory)


@pytest.fixture
def nvfp4_fact_snapshot(request: pytest.FixtureRequest) -> FactSnapshot:
    """Compare launch or codegen facts with the stored snapshot."""
    from pytest_nvfp4.plugin.compare import FactSnapshot

    return FactSnapshot(request.node, request.config.stash[RUN])
