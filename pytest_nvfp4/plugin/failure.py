"""Failures and warnings of checks, and the text that describes findings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pytest

from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.text import printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.toolchain.trace import Trace

_P = ParamSpec("_P")
_R = TypeVar("_R")
_BUNDLE = "debug bundle: "
"""Start of the line that names a debug bundle."""
_STDERR_LINES = 12
_ENDED_BADLY = ("crash", "vanished", "timeout", "internal")
_INTERNAL = re.compile(
    r'^\s*File "(?:[^"]*[/\\]pytest_nvfp4[/\\](?:toolchain|host|driver)|<frozen runpy>)|^Extension modules: '
)
"""Lines that faulthandler writes about this package and Python instead of the kernel."""


class KernelWarning(pytest.PytestWarning):
    """A property of a kernel that deserves attention and fails no check."""

    __module__ = "pytest_nvfp4.plugin"

    def __init__(self, text: str) -> None:
        super().__init__(printed(text))


class TimingWarning(pytest.PytestWarning):
    """A property of a measurement that deserves attention and does not fail it."""

    __module__ = "pytest_nvfp4.plugin"


class CheckFailure(AssertionError):
    """A check failed. A check item shows the text alone, without a traceback through this package.

    Attributes:
        file: The user's file that the failure concerns.
        line: The line in that file, counted from 1.
        findings: The findings that it reports, the most important one first.
        effects: What it observed of the outputs, which several defects may cause.
        cause: Identity of the cause, if no finding has one; see `causes`.
    """

    __module__ = "pytest_nvfp4.plugin"  # the public name, which pytest's short summary shows

    def __init__(
        self,
        text: str,
        *,
        file: str | None = None,
        line: int | None = None,
        findings: Sequence[Finding] = (),
        effects: Sequence[str] = (),
        cause: str | None = None,
    ) -> None:
        super().__init__(printed(text))
        self.file = file
        self.line = line
        self.findings = tuple(findings)
        self.effects = tuple(effects)
        self.cause = cause

    @property
    def identity(self) -> str:
        """Place and text, without the paths of debug bundles: equal for failures that are alike."""
        text = [line for line in str(self).splitlines() if not line.startswith(_BUNDLE)]
        return "\n".join([f"{self.file}:{self.line}", *text])


def fails_at_caller(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function for tests: the traceback of its `CheckFailure` ends at the line of the test."""

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except CheckFailure as failure:
            raise failure.with_traceback(None) from None

    return wrapper


def failure_at(lines: Sequence[str], findings: Sequence[Finding], *, kernel: Path) -> CheckFailure:
    """Return a failure that points at the first finding with a file, or at the kernel.

    Args:
        lines: The text. Its first line is the finding, because pytest's short summary shows that line only.
        findings: The findings, the most important one first.
        kernel: The kernel file.
    """
    place = next((finding for finding in findings if finding.file), None)
    file = place.file if place is not None else str(kernel)
    line = place.line if place is not None else None
    return CheckFailure("\n".join(lines), file=file, line=line, findings=findings)


def finding_lines(findings: Sequence[Finding], run: Run, *, most: int) -> list[str]:
    """Return the text of the first findings, with files relative to the root, and the number of the others."""
    lines: list[str] = []
    for finding in findings[:most]:
        file = None if finding.file is None else run.relative(Path(finding.file))
        lines += str(replace(finding, file=file)).splitlines()
    if len(findings) > most:
        lines.append(f"and {len(findings) - most} more")
    return lines


def stderr_lines(text: str) -> list[str]:
    """Return the last lines that a kernel wrote to stderr, with a heading; an empty list if it wrote nothing."""
    if not text.strip():
        return []
    return ["the kernel last wrote to stderr:", *(f"    {line}" for line in text.strip().splitlines()[-6:])]


def simulated_stderr(done: SimulationResult) -> list[str]:
    """Return `stderr_lines` of a simulation that did not run to its end; otherwise an empty list."""
    return stderr_lines(done.stderr) if done.status in ("crashed", "error", "timeout") else []


def warn_of(finding: Finding, item: pytest.Item, run: Run) -> None:
    """Warn of a finding at its line in the user's file, or at the item if the finding has no line.

    Raises:
        CheckFailure: The warning filters turn such warnings into errors (``-W error``).
    """
    if finding.file is None or finding.line is None:
        item.warn(KernelWarning(str(finding)))
        return
    warning = KernelWarning(str(replace(finding, file=None, text=None)))
    try:
        warnings.warn_explicit(warning, category=None, filename=run.relative(Path(finding.file)), lineno=finding.line)
    except KernelWarning:
        raise CheckFailure(
            "\n".join(finding_lines([finding], run, most=1)), file=finding.file, line=finding.line
        ) from None


def not_compiled(trace: Trace, run: Run) -> CheckFailure:
    """Return the failure of a kernel that did not compile: its findings and the debug bundle."""
    lines = [line for finding in trace.errors for line in described(finding, run)]
    if trace.bundle:
        lines.append(f"{_BUNDLE}{run.relative(Path(trace.bundle))}")
    return failure_at(lines, trace.errors, kernel=Path(trace.kernel))


def described(finding: Finding, run: Run) -> Iterator[str]:
    """Yield the lines that describe a finding of a compile, and the end of stderr if the compiler crashed."""
    place = ""
    if finding.file is not None:
        file = run.relative(Path(finding.file))
        place = f"{file}: " if finding.line is None else f"{file}:{finding.line}: "
    yield f"{place}{finding.message}"
    if finding.text:
        yield f"    {finding.text}"
    if finding.kind in _ENDED_BADLY:
        lines = [line for line in printed(finding.detail).splitlines() if line.strip() and not _INTERNAL.search(line)]
        if lines:
            yield "  it last wrote to stderr:"
            yield from (f"    {line}" for line in lines[-_STDERR_LINES:])
