"""``nvfp4 insights``: each layout of a kernel related to the hardware, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import click

from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.subject import matching, unmatched
from pytest_nvfp4.cli.tracing import Traced, traced_kernel
from pytest_nvfp4.insights import copies, structure, warp_requests
from pytest_nvfp4.insights.accesses import accesses_in, accesses_of
from pytest_nvfp4.insights.model import METHODS, Insight, LayoutInsights, Level, Place, worst_first
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.roles import roles_of
from pytest_nvfp4.report.document import Block, Document, Facts, Items, Section, Style, Styled
from pytest_nvfp4.text import plural


def findings_of(traced: Traced) -> list[LayoutInsights]:
    """Return the insights of every layout of a trace, folded by type, worst first."""
    records = traced.listing.records
    readable = [record for record in records if record.unreadable is None and record.readable is not None]
    accesses = accesses_in(traced.trace)
    own = {record.name: accesses_of(record.name, accesses, traced.trace.values) for record in readable}
    extra = {record.name: [*structure.of_accesses(record.info, own[record.name])] for record in readable}
    for scope in dict.fromkeys(copies.scope_of(record.name) for record in readable):
        walks = copies.walks([record for record in readable if copies.scope_of(record.name) == scope])
        fitting = Counter(walk.part.name for walk in walks)
        for walk in walks:
            part = walk.part.name
            extra[part] += warp_requests.insights(walk, alone=fitting[part] == 1, accesses=own[part])
    folded: dict[tuple[str, tuple[Insight, ...]], list[Record]] = {}
    for record in records:
        folded.setdefault((record.raw, _insights(record, extra.get(record.name, []))), []).append(record)
    places = traced.places
    findings = []
    for (raw, insights), members in folded.items():
        first = members[0]
        unreadable = first not in readable
        roles = None if unreadable else roles_of(first.name, first.info)
        at = tuple(
            Place(member.name, f"{traced.subject.relative(value.file)}:{value.line}" if value else "-")
            for member in members
            for value in [places.get(member.name)]
        )
        canonical = raw if unreadable else first.canonical
        findings.append(LayoutInsights(at, raw, canonical, roles.modes if roles else (), insights))
    return worst_first(findings)


def _insights(record: Record, more: Iterable[Insight]) -> tuple[Insight, ...]:
    if record.unreadable is not None:
        return (Insight("type", "cannot be read", Level.WRONG, "text", record.unreadable, "the call that made it"),)
    if record.readable is None:  # a type of another compiler
        return ()
    insights = [*structure.of_layout(record.name, record.info, roles_of(record.name, record.info)), *more]
    return tuple(sorted(dict.fromkeys(insights), key=lambda insight: -insight.level))


_STYLES: dict[Level, Style] = {Level.WRONG: "bad", Level.FINE: "good"}


def _section(finding: LayoutInsights, *, everything: bool) -> Section:
    names = ", ".join(f"{place.name} ({place.at})" for place in finding.places)
    blocks: list[Block] = [finding.canonical]
    if finding.roles:
        blocks.append(f"modes: ({', '.join(finding.roles)})")
    texts = []
    for insight in finding.insights:
        if insight.level > Level.FINE or everything:
            lines = [f"{insight.signal}: {insight.value}  [{insight.method}]", insight.meaning]
            texts.append("\n".join([*lines, *([f"look at: {insight.look_at}"] if insight.look_at else [])]))
    title = Styled(f"{finding.level.name:<5} {names}", _STYLES.get(finding.level, "warning"))
    return Section(title, [*blocks, *([Items(texts)] if texts else [])])


def _summary(findings: list[LayoutInsights], *, everything: bool) -> Iterator[Block]:
    counted = {
        level: sum(len(finding.places) for finding in findings if finding.level is level) for level in reversed(Level)
    }
    shown = [(level, count) for level, count in counted.items() if count]
    used = dict.fromkeys(insight.method for finding in findings for insight in finding.insights)
    meanings = [(level.name, level.meaning) for level, _ in shown] + [(method, METHODS[method]) for method in used]
    counts = ", ".join(f"{count} {level.name}" for level, count in shown)
    yield Section(f"{plural(sum(counted.values()), 'layout')}: {counts}", [Facts(meanings)])
    yield "nothing here was measured on a device"
    if not everything and counted[Level.FINE]:
        yield f"--all shows the {counted[Level.FINE]} FINE ones and every signal"


@click.command("insights")
@traced_kernel
@click.option("--filter", "patterns", multiple=True, metavar="GLOB", help="Show only matching names; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Show every signal of every layout.")
@document_options()
def insights_command(*, traced: Traced, patterns: tuple[str, ...], everything: bool) -> Document:
    """Relate each layout of KERNEL to the hardware, worst first.

    The signals are order and overlap (tractable, compact, injective, broadcast), vector width, alignment, TMEM columns,
    bank conflicts, and the sectors of a warp if a copy, a tile and its partition show the accesses of each lane.
    Layouts of one type are folded. Each signal names its method; none is measured. Exit code 1 if the kernel does not
    compile.
    """
    findings = findings_of(traced)
    if patterns:
        known = [place.name for finding in findings for place in finding.places]
        names = matching(known, patterns)
        if not names and traced.trace.ok:
            raise unmatched(known, patterns, label=traced.subject.label)
        findings = [finding for finding in findings if any(place.name in names for place in finding.places)]
    shown = [finding for finding in findings if finding.level > Level.FINE or everything]
    blocks = [
        *(_section(finding, everything=everything) for finding in shown),
        *_summary(findings, everything=everything),
    ]
    data = {**traced.to_json(), "insights": [finding.to_json() for finding in findings]}
    return Document(f"Insights on {traced.subject.description}", blocks, data, traced.trace.ok)
