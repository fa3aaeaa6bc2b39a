"""Explained profiles as a document: what limits each launch, hints, and counted beside measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_nvfp4.profile.analysis import Analysis, Bottleneck, Hint
from pytest_nvfp4.profile.counted import ComparedLaunch, Comparison, Verdict
from pytest_nvfp4.profile.explain import Explanation
from pytest_nvfp4.report.document import Block, Column, Items, Section, Style, Styled, Table
from pytest_nvfp4.text import clip, plural

MOST_SHOWN = 10
"""Launches and hints that are shown; JSON has all of them."""
_NAME = 100
_STYLES: dict[Verdict, Style] = {"equal": "good", "differs": "bad", "unknown": "muted", "not comparable": "muted"}


def explanation_sections(explanation: Explanation) -> Iterator[Block]:
    """Yield what a profile shows, for readers."""
    decided = [one for one in explanation.analyses if any(_decided(each) for each in one.bottlenecks) or one.hints]
    if explanation.analyses and not decided:
        yield Styled("what limits the launches is unknown: the report has none of the metrics that decide it", "muted")
    for analysis in decided[:MOST_SHOWN]:
        yield Section(f"what limits {clip(analysis.launch.name, _NAME)}", list(_analysis(analysis)))
    for launch in explanation.compared[:MOST_SHOWN]:
        yield Section(f"counted beside measured: {clip(launch.measured.name, _NAME)}", list(_compared(launch)))
    for shown, what in ((len(decided), "launch"), (len(explanation.compared), "compared launch")):
        if shown > MOST_SHOWN:
            yield f"and {plural(shown - MOST_SHOWN, f'more {what}', f'more {what}es')}; --kernel selects some"
    if explanation.notes:
        yield Items(list(explanation.notes))


def _decided(one: Bottleneck) -> bool:
    """Return whether a class is decided by more than a duration, which every report has."""
    return one.state != "unknown" and any(each.condition.quantity != "duration" for each in one.evidence)


def _analysis(analysis: Analysis) -> Iterator[Block]:
    for one in analysis.limits:
        text = f"{one.rule.name}: {one.rule.title} ({'; '.join(map(str, one.evidence))})"
        yield Styled(text, "muted" if one.contradicted_by else "strong")
        if one.contradicted_by:
            yield Items([f"but {said}" for said in one.contradicted_by])
    unknown = [(one.rule.name, one.missing) for one in analysis.bottlenecks if one.state == "unknown"]
    if not analysis.limits:
        yield "nothing that the known metrics show" if unknown else "nothing: every class is excluded"
    if unknown:
        missing = dict.fromkeys(name for _, names in unknown for name in names)
        yield Styled(f"unknown: {', '.join(name for name, _ in unknown)} (missing: {', '.join(missing)})", "muted")
    if analysis.hints:
        yield Items([_hint(hint) for hint in analysis.hints[:MOST_SHOWN]])


def _hint(hint: Hint) -> str:
    basis = "modelled" if hint.basis == "modelled" else "by the tool"
    gain = "" if hint.gain is None else f" [{100 * hint.gain:.1f} % {basis}]"
    place = f"{hint.line}: " if hint.line else ""
    # Why in full is said of the class.
    short = "; ".join(said.partition(" (")[0] for said in hint.contradicted_by)
    against = f" (but {short})" if short else ""
    return f"{place}{clip(' '.join(hint.text.split()), 300)}{gain}{clip(against, 400)}"


def _compared(launch: ComparedLaunch) -> Iterator[Block]:
    if launch.because:
        yield Styled(f"not compared: {launch.because}", "warning")
        return
    columns = [
        Column("counter"), Column("counted", right=True), Column("measured", right=True),
        Column("difference", right=True), Column("verdict"), Column("evidence"),
    ]  # fmt: skip
    rows = [
        (
            one.counter.title,
            _number(one.counted),
            _number(one.measured.value),
            "-" if one.verdict in ("unknown", "not comparable") else _difference(one),
            Styled(one.verdict, _STYLES.get(one.verdict, "")),
            one.evidence or "not measured before",
        )
        for one in launch.comparisons
    ]
    yield Table(columns, rows)
    differing = [f"{one.counter.title}: {one.counter.why} ({' + '.join(one.metrics)})" for one in launch.differing]
    if differing:
        yield Items(differing)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _difference(one: Comparison) -> str:
    if one.verdict == "proportional":
        return f"x {one.ratio:.4g}"
    percent = f" ({100 * one.difference / one.counted:+.2g} %)" if one.counted and one.difference else ""
    return f"{one.difference or 0:+,.0f}{percent}"


def explanation_data(explanation: Explanation) -> Mapping[str, Any]:
    """Return what a profile shows, as plain values."""
    return {
        "analyses": [
            {
                "kernel": analysis.launch.name,
                "index": analysis.launch.index,
                "bottlenecks": [
                    {
                        "class": one.rule.name,
                        "state": one.state,
                        "evidence": [str(evidence) for evidence in one.evidence],
                        "sources": list(dict.fromkeys(evidence.condition.source for evidence in one.evidence)),
                        "contradicted_by": list(one.contradicted_by),
                        "missing": list(one.missing),
                    }
                    for one in analysis.bottlenecks
                ],
                "hints": [
                    {
                        "class": hint.of,
                        "text": hint.text,
                        "line": hint.line or None,
                        "gain": hint.gain,
                        "basis": hint.basis or None,
                        "contradicted_by": list(hint.contradicted_by),
                    }
                    for hint in analysis.hints
                ],
            }
            for analysis in explanation.analyses
        ],
        "counted_beside_measured": [
            {
                "kernel": launch.measured.name,
                "index": launch.measured.index,
                "not_compared": launch.because or None,
                "counters": [
                    {
                        "name": one.counter.name,
                        "counted": one.counted,
                        "measured": one.measured.value,
                        "difference": one.difference,
                        "verdict": one.verdict,
                        "exactness": one.counter.exactness,
                        "metrics": list(one.metrics),
                        "why": one.counter.why,
                        "unknown_because": one.measured.because or None,
                        "evidence": one.evidence or None,
                    }
                    for one in launch.comparisons
                ],
            }
            for launch in explanation.compared
        ],
        "notes": list(explanation.notes),
    }
