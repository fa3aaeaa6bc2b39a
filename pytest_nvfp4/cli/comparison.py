"""Compare two kernels or snapshots: layouts by meaning, launch and code facts by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_nvfp4.cli.sides import Side
from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.launch_facts import diff_facts
from pytest_nvfp4.report.document import Block, Document
from pytest_nvfp4.report.model import CheckReport, Outcome, Report


def _selected(facts: Mapping[str, str], *, opcodes: bool) -> dict[str, str]:
    return {name: value for name, value in facts.items() if opcodes or ".ptx." not in name}


def compare(
    old: Side,
    new: Side,
    *,
    threshold: Severity,
    protected: tuple[str, ...] = (),
    opcodes: bool = False,
    facts_gate: bool = False,
    made_with: Mapping[str, str] | None = None,
    more: Sequence[Block] = (),
    data: Mapping[str, object] | None = None,
) -> Document:
    """Compare what both sides have: one check for each kind of content.

    Args:
        old: The side before.
        new: The side after.
        threshold: The mildest layout change that fails.
        protected: Patterns of layouts that must not change at all, besides those of both sides' settings.
        opcodes: Whether to compare how often each PTX instruction occurs.
        facts_gate: Whether a launch or code fact that differs fails too.
        made_with: Versions and settings for the report.
        more: Blocks that follow the report.
        data: Further data.
    """
    shield = tuple(dict.fromkeys((*protected, *old.protected, *new.protected)))
    checks = [
        CheckReport(side.label, "compile", "error", side.failure) for side in (old, new) if side.failure is not None
    ]
    if old.listing is not None and new.listing is not None:
        other = old.header.get("kernel") != new.header.get("kernel")
        diff = diff_listings(old.listing, new.listing, protected=shield, other_kernel=other)
        outcome: Outcome = "failed" if diff.gate(threshold) else "passed"
        checks.append(CheckReport(new.label, f"layouts against {old.label}", outcome, diff=diff))
    for kind, after in new.facts.items():
        if (before := old.facts.get(kind)) is None:
            continue
        changes = diff_facts(_selected(before, opcodes=opcodes), _selected(after, opcodes=opcodes))
        outcome = "failed" if changes and facts_gate else "passed"
        message = "" if changes else "no difference"
        checks.append(CheckReport(new.label, f"{kind} against {old.label}", outcome, message, facts=changes))
    report = Report(checks, generated_with=dict(made_with or {}), threshold=threshold)
    values = {"old": old.to_json(), "new": new.to_json(), **report.to_json(), **(data or {})}
    return Document(f"{old.label} against {new.label}", [report, *more], values, report.ok)
