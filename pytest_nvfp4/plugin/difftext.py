"""A layout diff as text for a terminal: what matters for the verdict, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.change import Change, HeaderChange, ListingDiff, Severity
from pytest_nvfp4.plugin.writing import write_whole

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.state import Run

MAX_IN_FULL = 6
"""Changes that a failure shows in full. Of more, which mostly are one cause in many layouts, it shows a line each."""
MAX_LINES = 40
FULL_OF_MANY = 2
"""Changes in full below the lines of many: the worst are enough to see what they look like."""
_WIDEST = 200
_AT_ONCE = 100
"""Changes that are rendered at once; a report leaves out what is more than it shows of one check."""
FOLDER = Path(".nvfp4", "diffs")


def excerpt(diff: ListingDiff, *, only: Sequence[Change], threshold: Severity, run: Run, snapshot: Path) -> str:
    """The changes that a verdict rests on, as far as a terminal is the place for them, and where all of them are.

    Args:
        diff: The whole diff.
        only: The changes that the verdict rests on, worst first.
        threshold: The gate.
        run: Where the file with the whole diff goes, when something is not shown here.
        snapshot: The snapshot's file, after which that file is named.
    """
    lines = overview(diff, only=only, threshold=threshold)
    if len(only) > MAX_IN_FULL:
        lines.append(f"all of them: {_keep(diff, threshold=threshold, run=run, snapshot=snapshot)}")
    elif others := len(diff.changes) - len(only):
        lines.append(f"({others} further change{'' if others == 1 else 's'} below the gate)")
    return "\n".join(f"  {line}" for line in lines)


def overview(diff: ListingDiff, *, only: Sequence[Change], threshold: Severity) -> list[str]:
    """Some changes of a diff: a few in full, or a line each of many and the first of them in full."""
    if len(only) <= MAX_IN_FULL:
        return [*_heading(diff), *_render(only, threshold=threshold)]
    lines = [*_heading(diff), *(_line(change) for change in only[:MAX_LINES])]
    if len(only) > MAX_LINES:
        lines.append(f"... and {len(only) - MAX_LINES} more")
    lines.append(f"the first {FULL_OF_MANY} in full:")
    return [*lines, *(f"  {line}" for line in _render(only[:FULL_OF_MANY], threshold=threshold))]


def _line(change: Change) -> str:
    """A change in one line: ``DIFFERENT kernel.sA: STAGE (mode 3): 3:32 -> 2:32; smem bytes 48 -> 32 B``."""
    from pytest_nvfp4.text import clip, visible

    what = [mode.text() for mode in change.modes] + [delta.text() for delta in change.deltas]
    what = [change.error] if change.error else what or list(change.reasons)
    kind = "" if change.kind == "changed" else f" ({change.kind})"
    return clip(visible(f"{change.severity.label.upper():<13} {change.name}{kind}: {'; '.join(what)}"), _WIDEST)


def _heading(diff: ListingDiff) -> Iterator[str]:
    for item in (*([diff.dsl_version] if diff.dsl_version else []), *diff.header):
        yield _header_text(item)
    counts = [f"{count} {severity.label}" for severity, count in reversed(diff.counts.items()) if count]
    yield ", ".join(counts) or "no layouts"


def _header_text(item: HeaderChange) -> str:
    from pytest_nvfp4.text import visible

    return f"{visible(item.key)} {visible(item.old or 'absent')} -> {visible(item.new or 'absent')}"


def _render(changes: Sequence[Change], *, threshold: Severity) -> list[str]:
    """The changes themselves, as `report.terminal` renders them, without the frame of a whole report around them."""
    from pytest_nvfp4.report.model import CheckReport, Report
    from pytest_nvfp4.report.terminal import render_terminal

    found: list[str] = []
    for start in range(0, len(changes), _AT_ONCE):
        check = CheckReport("", "", "failed", diff=ListingDiff(tuple(changes[start : start + _AT_ONCE])))
        lines = render_terminal(Report([check], threshold=threshold)).rstrip("\n").split("\n")
        _title, _counts, *body, _closing = lines
        found += [line.removeprefix("  ") for line in body]
    return found


def _keep(diff: ListingDiff, *, threshold: Severity, run: Run, snapshot: Path) -> str:
    """Write the whole diff to a file and say where it is."""
    root = run.options.root
    base = (
        snapshot.relative_to(run.options.snapshots) if snapshot.is_relative_to(run.options.snapshots) else snapshot.name
    )
    file = root / FOLDER / base
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        ignore = root / FOLDER.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        text = [*_heading(diff), *_render(diff.changes, threshold=threshold), ""]
        write_whole(file, "\n".join(text))
    except OSError as error:
        return f"--nvfp4-html FILE (a file of them could not be written: {error})"
    return run.relative(file)
