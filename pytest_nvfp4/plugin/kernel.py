"""The kernel that a check item is about: its trace, or why there is none."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.plugin.failure import BUNDLE, CheckFailure, finding_lines
from pytest_nvfp4.plugin.state import Case, Run

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.toolchain.trace import Trace

COMPILE = "compile"
"""The name of the check that is about compiling, to which the others point."""
_LAST_LINES = 12
_ENDED_BADLY = ("crash", "vanished", "timeout", "internal")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OUR_END = re.compile(
    r'^\s*File "(?:[^"]*[/\\]pytest_nvfp4[/\\](?:toolchain|host|driver)|<frozen runpy>)|^Extension modules: '
)
"""Lines of faulthandler's that are about this package and Python, not about the kernel."""


class KernelWarning(pytest.PytestWarning):
    """Something about a kernel that does not fail a check."""

    __module__ = "pytest_nvfp4.plugin"


def warn_of(finding: Finding, item: pytest.Item, run: Run) -> None:
    """Warn of a finding at its own line of the user's, which the summary then shows; else at the item.

    Raises:
        CheckFailure: ``-W error`` makes such warnings fail.
    """
    if finding.file is None or finding.line is None:
        item.warn(KernelWarning(str(finding)))
        return
    said = KernelWarning(str(replace(finding, file=None, text=None)))
    try:
        warnings.warn_explicit(said, category=None, filename=run.relative(Path(finding.file)), lineno=finding.line)
    except KernelWarning:
        lines = finding_lines([finding], run, most=1)
        raise CheckFailure("\n".join(lines), file=finding.file, line=finding.line) from None


def not_compiled(trace: Trace, run: Run) -> CheckFailure:
    """The failure of a kernel that did not compile: its findings, their place, and the debug bundle."""
    findings = trace.errors
    place = next((finding for finding in findings if finding.file), None)
    lines = [line for finding in findings for line in _described(finding, run)]
    if trace.bundle:
        lines.append(f"{BUNDLE}{run.relative(Path(trace.bundle))}")
    return CheckFailure(
        "\n".join(lines), file=place.file if place else trace.kernel, line=place.line if place else None
    )


def _described(finding: Finding, run: Run) -> Iterator[str]:
    place = ""
    if finding.file is not None:
        where = run.relative(Path(finding.file))
        place = f"{where}: " if finding.line is None else f"{where}:{finding.line}: "
    yield f"{place}{_clean(finding.message)}"
    if finding.text:
        yield f"    {_clean(finding.text)}"
    if finding.kind in _ENDED_BADLY:
        said = [line for line in _clean(finding.detail).splitlines() if line.strip() and not _OUR_END.search(line)]
        if said:
            yield "  it last wrote to stderr:"
            yield from (f"    {line}" for line in said[-_LAST_LINES:])


def _clean(text: str) -> str:
    """A text of the kernel's or the DSL's without colours, and with nothing else that could command a terminal."""
    from pytest_nvfp4.text import visible

    return visible(_COLOUR.sub("", text), multiline=True)


def item_name(check: str, case: Case) -> str:
    """The name of a check's item: ``layouts[gpumode-0]``."""
    return f"{check}[{case.label}]" if case.label else check


class KernelUnderTest:
    """The kernel of a check item."""

    def __init__(self, item: pytest.Item, run: Run, case: Case) -> None:
        self._item = item
        self._run = run
        self.case = case

    def compiled(self) -> Trace:
        """The trace of the kernel.

        Raises:
            CheckFailure: it did not compile; the text has the findings with the kernel's own lines.
        """
        from pytest_nvfp4.toolchain.request import EntryError

        if self.case.trouble:
            raise CheckFailure(self.case.trouble, file=str(self.case.path))
        try:
            trace = self._run.trace(self.case)
        except EntryError as error:
            raise CheckFailure(str(error), file=str(self.case.path)) from error
        if not trace.ok:
            raise not_compiled(trace, self._run)
        return trace

    def compiled_or_alike(self) -> Trace:
        """The trace, for the check that is about compiling.

        What fails alike on several problems of a kernel (an import, a type) fails once: the first of this run says it,
        and the others are skipped and point to it.
        """
        try:
            return self.compiled()
        except CheckFailure as failure:
            for item in self._compile_items():
                if item is self._item:
                    break
                if (other := self._failure_of(item)) is not None and other.alike(failure):
                    pytest.skip(f"it fails as {item.nodeid} does")
            raise

    def compiled_or_skip(self) -> Trace:
        """The trace, for a check other than the one that is about compiling.

        When the kernel did not compile and the check that says so is part of this run, this one is skipped: one defect
        gives one failure. Otherwise it fails as that one would.
        """
        try:
            return self.compiled()
        except CheckFailure:
            if said := self._said_by():
                pytest.skip(f"it did not compile: see {said}")
            raise

    def _said_by(self) -> str | None:
        """The item of this run that fails because this kernel does not compile.

        It is the one of the same problem, or of another problem of the same configuration on which it does not compile
        either: a check on a device has problems of its own.
        """
        own = item_name(COMPILE, self.case)
        items = sorted(self._compile_items(), key=lambda item: item.name != own)
        failing = (item for item in items if item.name == own or self._failure_of(item) is not None)
        return next((item.nodeid for item in failing), None)

    def _compile_items(self) -> list[pytest.Item]:
        """The items of this run that are about compiling this configuration of the kernel, in their order."""
        return [
            item
            for item in self._item.session.items
            if item.parent is self._item.parent
            and item.name.partition("[")[0] == COMPILE
            and isinstance(case := getattr(item, "case", None), Case)
            and case.settings == self.case.settings
        ]

    def _failure_of(self, item: pytest.Item) -> CheckFailure | None:
        try:
            KernelUnderTest(item, self._run, item.case).compiled()  # type: ignore[attr-defined]
        except CheckFailure as failure:
            return failure
        return None

    def note(self, warning: KernelWarning) -> None:
        """Say something that does not fail the check."""
        self._item.warn(warning)

    def warn(self, trace: Trace) -> None:
        """Pass on what the trace warns of."""
        for finding in trace.findings:
            if finding.severity == "warning":
                self._item.warn(KernelWarning(" ".join(_described(finding, self._run))))
