"""How a check says that a kernel did not pass it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.plugin.state import Run

BUNDLE = "debug bundle: "
"""How the line begins that says where a debug bundle is."""


class CheckFailure(AssertionError):
    """A check failed. The text is what a person reads; a check item shows it without this package's own lines.

    Attributes:
        file: The user's file it concerns.
        line: The line in it, counted from 1.
    """

    __module__ = "pytest_nvfp4.plugin"  # where users find it, and what the short summary of a test says

    def __init__(self, text: str, *, file: str | None = None, line: int | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.line = line

    def alike(self, other: CheckFailure) -> bool:
        """Whether the other says the same of the same place; where their debug bundles are does not count."""
        return (self.file, self.line, self._said()) == (other.file, other.line, other._said())

    def _said(self) -> list[str]:
        return [line for line in str(self).splitlines() if not line.startswith(BUNDLE)]


def finding_lines(findings: Sequence[Finding], run: Run, *, most: int) -> list[str]:
    """What a device found, line by line, with files as the user names them.

    It belongs first in a failure: pytest's short summary has one line of it.

    Args:
        findings: What was found.
        run: The run, whose root files are relative to.
        most: How many findings are told; of the others their number.
    """
    lines: list[str] = []
    for finding in findings[:most]:
        shown = finding
        if finding.file is not None:
            shown = replace(finding, file=run.relative(Path(finding.file)))
        lines += str(shown).splitlines()
    if len(findings) > most:
        lines.append(f"and {len(findings) - most} more")
    return lines
