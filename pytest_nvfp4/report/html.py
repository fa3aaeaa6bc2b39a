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
from itertools import groupby

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from pytest_nvfp4.layout.change import Change, Severity
from pytest_nvfp4.layout.drawing import Colour, draw_pair_svg, draw_svg
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grid import why_not
from pytest_nvfp4.report.document import Block, Cell, cell_style, cell_text
from pytest_nvfp4.report.model import CheckReport, Report
from pytest_nvfp4.text import visible

MAX_DRAWINGS = 60
"""Limit on the drawings of a page, which are most of its size. Worst changes are drawn first, the rest is counted."""
DRAWING_ROWS = 12
DRAWING_COLS = 12
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
_MARK_LIMIT = 4_000
_LEAST_FOLD = 4
"""Fewest checks alike that share a row."""
_UNFOLDED = 2
"""Most kernels whose sections are open."""


def render_page(*, title: str, body: Markup) -> str:
    """Return a page with a title and a body that is safe HTML."""
    return _template("page.html.j2").render(title=title, headline="", body=body)


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
    drawings = _Drawings(max_drawings)
    checks = [
        (check, [] if check.diff is None else [(change, drawings.draw(change)) for change in check.diff.changes])
        for check in report.worst_first()
    ]
    views = []
    if any(check.evidence is not None for check in report.checks):
        from pytest_nvfp4.report.kernel_view import kernel_views  # with the models of simulated calls

        views = kernel_views(report.checks)
    present = {change.severity for _, changes in checks for change, _ in changes}
    return _template("report.html.j2").render(
        title=title,
        headline=report.headline,
        report=report,
        checks=checks,
        rows=list(_rows(checks)),
        bad=sum(check.bad for check, _ in checks),
        kernels=views,
        unfolded=len(views) <= _UNFOLDED,
        filters=[item for item in reversed(Severity) if item in present],
        outcomes=[(outcome, count) for outcome, count in report.outcomes.items() if count],
        undrawn=drawings.refused,
        more=more,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table of checks: one check, or several that passed alike.

    Attributes:
        number: Number of the first check on the page.
        check: The first check.
        changed: Whether it shows layout changes.
        others: Labels of the further checks.
        seconds: Seconds of all of them; None if unknown.
    """

    number: int
    check: CheckReport
    changed: bool
    others: Sequence[str]
    seconds: float | None


def _rows(checks: Sequence[tuple[CheckReport, Sequence[object]]]) -> Iterator[_Row]:
    """Yield the rows of the table; of many checks that establish the same but for their problem, one for all."""

    def alike(item: tuple[int, tuple[CheckReport, Sequence[object]]]) -> object:
        number, (check, changes) = item
        name, _, label = check.check.partition("[")
        if check.outcome != "passed" or changes or check.accepted or not label:
            return number
        return check.kernel, name, _evidence(check, Severity.PERMUTED).replace(label.removesuffix("]"), "")

    for _, items in groupby(enumerate(checks), key=alike):
        group = list(items)
        for some in [group] if len(group) >= _LEAST_FOLD else [[each] for each in group]:
            number, (first, changes) = some[0]
            seconds = [check.seconds for _, (check, _) in some if check.seconds is not None]
            labels = [check.check.partition("[")[2].removesuffix("]") for _, (check, _) in some[1:]]
            yield _Row(number, first, bool(changes), labels, sum(seconds) if seconds else None)


class _Drawings:
    """Drawings of changes, up to a limit.

    Attributes:
        refused: Number of changes that could be drawn, but came after the limit.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self.refused = 0

    def draw(self, change: Change) -> Markup | str:
        """Return the drawing of a change, else the reason why there is none, which is empty if it needs none."""
        if change.severity <= Severity.COSMETIC:
            return ""
        try:
            infos = [record.info for record in (change.old, change.new) if record is not None]
            for info in infos:
                if info.layout is None:
                    return ""
                if reason := why_not(info):
                    return f"Not drawn: {reason}."
            if not infos:
                return ""
            if not self._left:
                self.refused += 1
                return "Not drawn: the page has reached its limit of drawings."
            self._left -= 1
            colour: Colour = "bank" if all(info.space == "smem" and info.dtype for info in infos) else "stride"
            draw = draw_pair_svg if len(infos) == 2 else draw_svg
            title = f"Layout {visible(change.name)}, {'old and new' if len(infos) == 2 else change.kind}"
            svg = draw(*infos, title=title, colour=colour, max_rows=DRAWING_ROWS, max_cols=DRAWING_COLS)
        except LayoutError as error:
            return f"Not drawn: {error}"
        return Markup(svg)  # whose text is escaped


def _marked(change: Change) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return both types of a change in parts, with whether a part differs from the other type, word by word.

    Very long types are compared as a whole.
    """
    old, new = visible(change.old_raw or ""), visible(change.new_raw or "")
    if not old or not new or max(len(old), len(new)) > _MARK_LIMIT:
        return [(old, old != new)] if old else [], [(new, old != new)] if new else []
    left, right = _WORDS.findall(old), _WORDS.findall(new)
    before: list[tuple[str, bool]] = []
    after: list[tuple[str, bool]] = []
    for tag, i0, i1, j0, j1 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if i1 > i0:
            before.append(("".join(left[i0:i1]), tag != "equal"))
        if j1 > j0:
            after.append(("".join(right[j0:j1]), tag != "equal"))
    return before, after


def _evidence(check: CheckReport, threshold: Severity) -> str:
    """Return what a check established; without that, the outline of its message and of what changed."""
    lines = check.established or [check.outline(threshold)]
    return "\n".join(map(visible, lines))


def _css(severity: Severity) -> str:
    return severity.name.lower().replace("_", "-")


def _markdown(source: str) -> Markup:
    from markdown_it import MarkdownIt  # a dependency of rich

    return Markup(MarkdownIt("commonmark", {"html": False, "xhtmlOut": True}).enable("table").render(source))


def _lines(cell: Cell) -> Markup:
    return escape(visible(cell_text(cell), multiline=True))


@lru_cache(maxsize=4)
def _template(name: str) -> Template:
    environment = Environment(
        loader=FunctionLoader(
            lambda file: resources.files("pytest_nvfp4.report").joinpath(file).read_text(encoding="utf-8")
        ),
        autoescape=True,
        # Every value that a template writes, unless it is markup: no template can forget an untrusted text.
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        css=_css,
        lines=_lines,
        markdown=_markdown,
        marked=_marked,
        evidence=_evidence,
        style=cell_style,
        newline=Markup,
        kind=lambda block: type(block).__name__,
    )
    return environment.get_template(name)
