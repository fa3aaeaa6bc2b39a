"""Reports and documents as self-contained HTML pages: no scripts, no external resources, all text escaped.

A page is also well-formed XML. Its filters use CSS only, because artifact viewers of CI servers forbid scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from pytest_nvfp4.layout.change import Change, HeaderChange, Severity
from pytest_nvfp4.layout.drawing import Colour, draw_pair_svg, draw_svg, why_not
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import TypeInfo
from pytest_nvfp4.report.document import Block, cell_style, cell_text
from pytest_nvfp4.report.model import OUTCOMES, CheckReport, Outcome, Report
from pytest_nvfp4.text import visible

MAX_DRAWINGS = 60
"""Limit on the drawings of a page, which are most of its size. Worst changes are drawn first, the rest is counted."""
DRAWING_ROWS = 12
DRAWING_COLS = 12
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
_MARK_LIMIT = 4_000


def render_page(*, title: str, body: Markup) -> str:
    """Return a page with a title and a body that is safe HTML."""
    return _template("page.html.j2").render(title=visible(title), headline="", body=body)


def render_blocks(blocks: Sequence[Block]) -> Markup:
    """Return blocks of a document as safe HTML. A report among them is left out: it is a page's main part."""
    return Markup(_template("blocks.html.j2").module.show(blocks, 2))  # type: ignore[attr-defined]


def render_html(
    report: Report,
    *,
    title: str = "NVFP4 kernel report",
    max_drawings: int = MAX_DRAWINGS,
    more: Markup = Markup(""),  # noqa: B008 - immutable
) -> str:
    """Return the report as an HTML page.

    Args:
        report: The report.
        title: The page's title.
        max_drawings: Greatest number of layouts drawn; the page states how many it leaves out.
        more: Safe HTML that follows the report.
    """
    budget = _DrawingBudget(max_drawings)
    checks = [_view(check, at, report, budget) for at, check in enumerate(report.worst_first())]
    return _template("report.html.j2").render(
        title=visible(title),
        headline=report.headline,
        ok=report.ok,
        any_passed=bool(report.outcomes["passed"]),
        threshold=report.threshold.label,
        made=[(visible(key), visible(value)) for key, value in report.generated_with.items()],
        checks=checks,
        severities=[(item, count) for item, count in reversed(report.severities.items()) if count],
        filters=[item for item in reversed(Severity) if any(change.severity is item for change in _changes(report))],
        outcomes=[(outcome, report.outcomes[outcome]) for outcome in OUTCOMES if report.outcomes[outcome]],
        undrawn=budget.refused,
        more=more,
    )


@dataclass
class _DrawingBudget:
    """Budget of drawings, with a count of refused ones."""

    left: int
    refused: int = 0

    def take(self) -> bool:
        if self.left > 0:
            self.left -= 1
            return True
        self.refused += 1
        return False


@dataclass(frozen=True)
class _Marked:
    """Part of a type's text, with whether it differs from the other side."""

    text: str
    differs: bool


@dataclass(frozen=True)
class _ChangeView:
    name: str
    old_name: str
    kind: str
    severity: Severity
    css: str
    method: str
    role: str
    flags: list[str]
    gates: bool
    error: str
    reasons: list[str]
    roles: str
    role_source: str
    modes: list[str]
    first: str
    deltas: list[tuple[str, str, str, str]]
    noted: bool
    old: list[_Marked]
    new: list[_Marked]
    drawing: Markup | None
    undrawn: str


@dataclass(frozen=True)
class _CheckView:
    anchor: str
    kernel: str
    check: str
    outcome: Outcome
    where: str
    message: str
    header: list[tuple[str, str, str]]
    counts: list[tuple[Severity, int]]
    changes: list[_ChangeView]
    facts: list[tuple[str, bool]]
    worst: Severity


def _changes(report: Report) -> Iterator[Change]:
    for check in report.checks:
        if check.diff is not None:
            yield from check.diff.changes


def _view(check: CheckReport, at: int, report: Report, budget: _DrawingBudget) -> _CheckView:
    diff = check.diff
    where = "" if check.file is None else f"{check.file}:{check.line}" if check.line else check.file
    return _CheckView(
        anchor=f"check-{at}",
        kernel=visible(check.kernel),
        check=visible(check.check),
        outcome=check.outcome,
        where=visible(where),
        message=visible(check.message.strip(), multiline=True),
        header=[] if diff is None else [_header(item) for item in (diff.dsl_version, *diff.header) if item],
        counts=[] if diff is None else [(item, count) for item, count in reversed(diff.counts.items()) if count],
        changes=[] if diff is None else [_change(change, report, budget) for change in diff.changes],
        facts=[(visible(fact.text()), fact.costs) for fact in check.facts],
        worst=check.worst,
    )


def _header(item: HeaderChange) -> tuple[str, str, str]:
    return visible(item.key), visible(item.old or "absent"), visible(item.new or "absent")


def _change(change: Change, report: Report, budget: _DrawingBudget) -> _ChangeView:
    old, new = _marked(visible(change.old_raw or ""), visible(change.new_raw or ""))
    flags = ["error"] if change.error else []
    flags += ["protected"] if change.protected else []
    flags += ["not provable"] if change.unproven else []
    drawing, undrawn = _drawing(change, budget)
    return _ChangeView(
        name=visible(change.name),
        old_name=visible(change.old_name or ""),
        kind=change.kind,
        severity=change.severity,
        css=_css(change.severity),
        method=change.method,
        role=visible(change.role or ""),
        flags=flags,
        gates=report.gates(change),
        error=visible(change.error or ""),
        reasons=[visible(reason) for reason in change.reasons],
        roles=", ".join(change.roles),
        role_source=change.role_source,
        modes=[visible(mode.text()) for mode in change.modes],
        first="" if change.first is None else visible(change.first.text()),
        deltas=[
            (visible(item.label), _value(item.old, item.unit), _value(item.new, item.unit), visible(item.note))
            for item in change.deltas
        ],
        noted=any(item.note for item in change.deltas),
        old=old,
        new=new,
        drawing=drawing,
        undrawn=undrawn,
    )


def _value(value: str | int | None, unit: str) -> str:
    if value is None:
        return "none"
    return visible(f"{value} {unit}".strip())


def _css(severity: Severity) -> str:
    return severity.name.lower().replace("_", "-")


def _drawing(change: Change, budget: _DrawingBudget) -> tuple[Markup | None, str]:
    """Return the drawing of a change, or the reason why there is none. The SVG escapes its text, hence ``Markup``."""
    if change.severity <= Severity.COSMETIC:
        return None, ""
    infos: list[TypeInfo] = []
    try:
        for record in (change.old, change.new):
            if record is not None:
                infos.append(record.info)
        for info in infos:
            if info.layout is None:
                return None, ""
            if reason := why_not(info):
                return None, f"Not drawn: {visible(reason)}."
        if not infos:
            return None, ""
        if not budget.take():
            return None, "Not drawn: the page has reached its limit of drawings."
        colour: Colour = "bank" if all(info.space == "smem" and info.dtype for info in infos) else "stride"
        name = f"Layout {visible(change.name)}"
        if len(infos) == 2:
            svg = draw_pair_svg(
                *infos, title=f"{name}, old and new", colour=colour, max_rows=DRAWING_ROWS, max_cols=DRAWING_COLS
            )
        else:
            svg = draw_svg(
                infos[0], title=f"{name}, {change.kind}", colour=colour, max_rows=DRAWING_ROWS, max_cols=DRAWING_COLS
            )
    except LayoutError as error:
        return None, f"Not drawn: {visible(str(error))}"
    return Markup(svg), ""


def _marked(old: str, new: str) -> tuple[list[_Marked], list[_Marked]]:
    """Return both texts in parts that agree or differ, word by word; very long texts are compared as a whole."""
    if not old or not new or max(len(old), len(new)) > _MARK_LIMIT:
        differs = old != new
        return ([_Marked(old, differs)] if old else [], [_Marked(new, differs)] if new else [])
    left, right = _WORDS.findall(old), _WORDS.findall(new)
    before: list[_Marked] = []
    after: list[_Marked] = []
    for tag, i0, i1, j0, j1 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        differs = tag != "equal"
        if i1 > i0:
            before.append(_Marked("".join(left[i0:i1]), differs))
        if j1 > j0:
            after.append(_Marked("".join(right[j0:j1]), differs))
    return before, after


@lru_cache(maxsize=3)
def _template(name: str) -> Template:
    environment = Environment(
        loader=FunctionLoader(
            lambda file: resources.files("pytest_nvfp4.report").joinpath(file).read_text(encoding="utf-8")
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        css=_css,
        markdown=_markdown,
        kind=lambda block: type(block).__name__,
        shown=lambda cell: visible(cell_text(cell), multiline=True),
        style=cell_style,
    )
    return environment.get_template(name)


def _markdown(source: str) -> Markup:
    from markdown_it import MarkdownIt  # a dependency of rich

    return Markup(MarkdownIt("commonmark", {"html": False, "xhtmlOut": True}).enable("table").render(source))
