"""Reports of a run: checks of kernels, with their layout diffs and launch facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from pytest_nvfp4.layout.change import Change, ListingDiff, Severity, gates
from pytest_nvfp4.layout.launch_facts import FactChange

if TYPE_CHECKING:
    from pytest_nvfp4.report.evidence import Evidence
    from pytest_nvfp4.report.trend import Points

SCHEMA: Literal[1] = 1
"""Version of the JSON of a report."""
Outcome = Literal["passed", "failed", "error", "skipped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_OUTLINED = 2
"""Changes that the line about a check names."""


@dataclass(frozen=True)
class CheckReport:
    """One check of one kernel.

    Attributes:
        kernel: Name or file of the kernel. Untrusted text.
        check: Name of the check, such as ``layouts`` or ``verify[gpumode-0]``.
        outcome: passed, failed (the kernel is wrong), error (the check could not run), skipped.
        message: What is wrong, why, and what to do next; may have several lines. Untrusted text.
        file: File that the message is about, or None.
        line: Line in the file, counted from 1, or None.
        cause: Another check that fails by the same cause and has the whole message; empty for none.
        diff: Layouts against the snapshot, if the check compared them.
        facts: Launch facts that changed.
        findings: The findings of a failure (`Finding.to_dict`). Untrusted text.
        values: What the check found, by name, for programs.
        established: What the check established, in words. Untrusted text.
        seconds: Duration of the check itself, without work that was done ahead of it; None if it is not known.
        evidence: What it found that a page draws; only for a page.
        counters: Counters of the snapshot (empty without one), those of this run, and those of earlier runs.
        accepted: The findings that the settings accept; ``shown`` describes one. Untrusted text.
        warnings: Warnings about the kernel (`Finding.to_dict`). Untrusted text.
    """

    kernel: str
    check: str
    outcome: Outcome
    message: str = ""
    file: str | None = None
    line: int | None = None
    cause: str = ""
    diff: ListingDiff | None = None
    facts: Sequence[FactChange] = ()
    findings: Sequence[Mapping[str, object]] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    established: Sequence[str] = ()
    seconds: float | None = None
    evidence: Evidence | None = None
    counters: tuple[Mapping[str, str], Mapping[str, str], Points] | None = None
    accepted: Sequence[Mapping[str, object]] = ()
    warnings: Sequence[Mapping[str, object]] = ()

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} of {self.kernel}::{self.check} is not one of {OUTCOMES}")

    @property
    def bad(self) -> bool:
        """Whether this check fails the run."""
        return self.outcome in {"failed", "error"}

    @property
    def where(self) -> str:
        """File and line; empty without a file."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file or ""

    @property
    def worst(self) -> Severity:
        """Worst severity of a layout change; ``IDENTICAL`` without a diff."""
        return Severity.IDENTICAL if self.diff is None else self.diff.worst

    @property
    def changed_facts(self) -> list[FactChange]:
        """The facts that changed, those that cost more first."""
        return sorted(self.facts, key=lambda fact: not fact.costs)

    def outline(self, threshold: Severity) -> str:
        """Return in one line what the check found: what changed, why it was skipped, or what it established."""
        verdict = self.message.strip().partition("\n")[0]
        said = [verdict] if verdict else [] if self.bad else list(self.established)
        changed = [fact.text() for fact in self.changed_facts]
        if self.diff is not None:
            gated = self.diff.gate(threshold) if self.bad else ()
            changed += [f"{change.name}: {change.severity.label}" for change in gated or self.diff.changes]
        if changed:
            more = f" and {len(changed) - _OUTLINED} more" if len(changed) > _OUTLINED else ""
            said.append("; ".join(changed[:_OUTLINED]) + more)
        return (": " if self.bad else "; ").join([*(each.removesuffix(":") for each in said[:-1]), *said[-1:]])

    def to_json(self) -> dict[str, object]:
        """Return the check as JSON-ready values."""
        return {
            "kernel": self.kernel,
            "check": self.check,
            "outcome": self.outcome,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "cause": self.cause,
            "diff": None if self.diff is None else self.diff.to_json(),
            "facts": [fact.to_json() for fact in self.facts],
            "findings": [dict(finding) for finding in self.findings],
            "values": dict(self.values),
            "established": list(self.established),
            "seconds": self.seconds,
            "accepted": [dict(finding) for finding in self.accepted],
            "warnings": [dict(finding) for finding in self.warnings],
        }


@dataclass(frozen=True)
class Report:
    """All checks of a run.

    Attributes:
        checks: Checks in the order they ran.
        generated_with: Versions and settings that the results depend on, by name.
        threshold: Mildest layout change that fails.
    """

    checks: Sequence[CheckReport]
    generated_with: Mapping[str, str] = field(default_factory=dict)
    threshold: Severity = Severity.PERMUTED

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Number of checks by outcome; every outcome is a key."""
        counted = Counter(check.outcome for check in self.checks)
        return {outcome: counted[outcome] for outcome in OUTCOMES}

    @property
    def severities(self) -> dict[Severity, int]:
        """Number of layouts by severity, over all checks; every severity is a key."""
        total: Counter[Severity] = Counter()
        for check in self.checks:
            if check.diff is not None:
                total.update(check.diff.counts)
        return {severity: total[severity] for severity in Severity}

    @property
    def ok(self) -> bool:
        """Whether no check failed. Renderers do not show a run as a success if all checks were skipped."""
        return not any(check.bad for check in self.checks)

    @property
    def headline(self) -> str:
        """Result on one line: ``2 failed, 1 passed``."""
        parts = [f"{count} {outcome}" for outcome, count in self.outcomes.items() if count]
        order = {"failed": 0, "error": 1, "passed": 2, "skipped": 3}
        parts.sort(key=lambda part: order[part.split()[1]])
        return ", ".join(parts) or "no check ran"

    def gates(self, change: Change) -> bool:
        """Return whether this change fails the run at the report's threshold."""
        return gates(change, self.threshold)

    def worst_first(self) -> list[CheckReport]:
        """Return the checks by outcome, failures first, then by worst layout severity, then in the order they ran."""
        rank = {"failed": 0, "error": 0, "skipped": 2, "passed": 1}
        return sorted(self.checks, key=lambda check: (rank[check.outcome], -check.worst))

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return {
            "schema_version": SCHEMA,
            "ok": self.ok,
            "outcomes": dict(self.outcomes),
            "severities": {severity.name.lower(): count for severity, count in self.severities.items()},
            "threshold": self.threshold.name.lower(),
            "generated_with": dict(self.generated_with),
            "checks": [check.to_json() for check in self.checks],
        }
