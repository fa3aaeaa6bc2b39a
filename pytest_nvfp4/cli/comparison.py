"""Compare two sides: layouts by meaning, launch and code facts by value; and say it in one of several forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.sides import Side
from pytest_nvfp4.layout.change import ListingDiff, Severity
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.report.model import CheckReport, Report


@dataclass(frozen=True)
class Comparison:
    """What differs between two sides.

    Attributes:
        old: The side before.
        new: The side after.
        diff: The layouts; None where one side has none.
        facts: Launch and code facts that differ; None where one side has none.
        report: The same for the renderers.
    """

    old: Side
    new: Side
    diff: ListingDiff | None
    facts: list[FactChange] | None
    report: Report

    @property
    def failed(self) -> bool:
        """Whether the command ends with exit code 1."""
        return not self.report.ok

    def to_json(self) -> dict[str, object]:
        """The comparison as JSON-ready values."""
        return {"old": self.old.to_json(), "new": self.new.to_json(), **self.report.to_json()}


def _chosen(facts: Mapping[str, str] | None, *, opcodes: bool) -> dict[str, str]:
    return {name: value for name, value in (facts or {}).items() if opcodes or ".ptx." not in name}


def compare(
    old: Side,
    new: Side,
    *,
    threshold: Severity,
    protected: tuple[str, ...] = (),
    opcodes: bool = False,
    facts_gate: bool = False,
    made_with: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare what both sides have.

    Args:
        old: The side before.
        new: The side after.
        threshold: The mildest layout change that fails.
        protected: Patterns of layouts that may not change at all, besides those of both sides' settings.
        opcodes: Compare how often each PTX instruction occurs.
        facts_gate: A launch or code fact that differs fails too.
        made_with: Versions and settings for the report.
    """
    shield = tuple(dict.fromkeys((*protected, *old.protected, *new.protected)))
    diff: ListingDiff | None = None
    facts: list[FactChange] | None = None
    checks: list[CheckReport] = []
    for side in (old, new):
        if side.failure is not None:
            checks.append(CheckReport(side.label, "compile", "error", side.failure))
    if old.listing is not None and new.listing is not None:
        diff = diff_listings(old.listing, new.listing, protected=shield)
        bad = diff.gate(threshold)
        checks.append(CheckReport(new.label, f"layouts against {old.label}", "failed" if bad else "passed", diff=diff))
    for name, before, after in (
        ("launch", old.launch, new.launch),
        ("codegen", old.codegen, new.codegen),
        ("cost", old.cost, new.cost),
    ):
        if before is None or after is None:
            continue
        found = diff_facts(_chosen(before, opcodes=opcodes), _chosen(after, opcodes=opcodes))
        facts = [*(facts or []), *found]
        bad_facts = bool(found) and facts_gate
        message = "" if found else "no difference"
        checks.append(
            CheckReport(
                new.label, f"{name} against {old.label}", "failed" if bad_facts else "passed", message, facts=found
            )
        )
    report = Report(checks, generated_with=dict(made_with or {}), threshold=threshold)
    return Comparison(old, new, diff, facts, report)


@dataclass(frozen=True, slots=True)
class Form:
    """How a comparison is to be shown; none of the forms for standard output is a terminal's."""

    json: bool = False
    markdown: bool = False
    html: Path | None = None


def show(comparison: Comparison, form: Form, *, more: Mapping[str, object] | None = None) -> None:
    """Write a comparison to standard output, and to the HTML file where one is named.

    Args:
        comparison: What to show.
        form: How.
        more: What JSON holds besides.

    Raises:
        InputError: the file cannot be written.
    """
    if form.html is not None:
        from pytest_nvfp4.report.html import render_html

        title = f"{comparison.old.label} against {comparison.new.label}"
        output.write_file(form.html, render_html(comparison.report, title=title))
        output.note(f"wrote {form.html}")
    if form.json:
        output.write_json({**comparison.to_json(), **(more or {})})
    elif form.markdown:
        from pytest_nvfp4.report.markdown import render_markdown

        output.write(render_markdown(comparison.report, marker=None))
    else:
        from pytest_nvfp4.report.terminal import render_terminal

        output.write(render_terminal(comparison.report, width=output.width(), color=output.coloured()))
