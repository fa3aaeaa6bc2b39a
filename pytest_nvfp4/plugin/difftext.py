"""A layout diff as text for a terminal: what matters for the verdict, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.change import Change, HeaderChange, ListingDiff, Severity
from pytest_nvfp4.plugin.writing import write_whole

if TYPE_CHECKING:
    from pytest_nvfp4.plugin.state import Run

MAX_CHANGES = 20
"""Changes that one failure shows; a terminal is no place for more, and the rest is in a file."""
FOLDER = Path(".nvfp4", "diffs")


def excerpt(diff: ListingDiff, *, only: Sequence[Change], threshold: Severity, run: Run, snapshot: Path) -> str:
    """The changes that a verdict rests on, at most `MAX_CHANGES` of them, and a statement of what is left out.

    Args:
        diff: The whole diff.
        only: The changes that the verdict rests on, worst first.
        threshold: The gate.
        run: Where the file with the whole diff goes, when something had to be left out.
        snapshot: The snapshot's file, after which that file is named.
    """
    lines = [*_heading(diff), *render_changes(only[:MAX_CHANGES], threshold=threshold)]
    left_out = len(only) - MAX_CHANGES
    if left_out > 0:
        lines.append(
            f"... and {left_out} more like these; {_keep(diff, threshold=threshold, run=run, snapshot=snapshot)}"
        )
    elif others := len(diff.changes) - len(only):
        lines.append(f"({others} further change{'' if others == 1 else 's'} below the gate)")
    return "\n".join(f"  {line}" for line in lines)


def whole(diff: ListingDiff, *, threshold: Severity) -> list[str]:
    """The lines of the diff with all its changes."""
    return [*_heading(diff), *render_changes(diff.changes, threshold=threshold)]


def _heading(diff: ListingDiff) -> Iterator[str]:
    for item in (*([diff.dsl_version] if diff.dsl_version else []), *diff.header):
        yield _header_text(item)
    counts = [f"{count} {severity.label}" for severity, count in reversed(diff.counts.items()) if count]
    yield ", ".join(counts) or "no layouts"


def _header_text(item: HeaderChange) -> str:
    from pytest_nvfp4.report.text import visible

    return f"{visible(item.key)} {visible(item.old or 'absent')} -> {visible(item.new or 'absent')}"


def render_changes(changes: Sequence[Change], *, threshold: Severity) -> list[str]:
    """The changes themselves, as `report.terminal` renders them, without the frame of a whole report around them."""
    from pytest_nvfp4.report.model import CheckReport, Report
    from pytest_nvfp4.report.terminal import render_terminal

    check = CheckReport("", "", "failed", diff=ListingDiff(tuple(changes)))
    lines = render_terminal(Report([check], threshold=threshold)).rstrip("\n").split("\n")
    _title, _counts, *body, _closing = lines
    return [line.removeprefix("  ") for line in body]


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
        write_whole(file, "\n".join([*whole(diff, threshold=threshold), ""]))
    except OSError as error:
        return f"--nvfp4-html FILE writes all of them (a file of them could not be written: {error})"
    return f"all of them: {run.relative(file)}"
