"""Text of a layout diff for a terminal: the changes that decide the verdict, and the file with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_nvfp4.layout.change import Change, HeaderChange, ListingDiff, Severity
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.report.model import CheckReport, Report
from pytest_nvfp4.report.terminal import render_terminal
from pytest_nvfp4.text import clip, visible
from pytest_nvfp4.writing import write_whole

MAX_IN_FULL = 6
"""Changes that a failure shows in full. More changes mostly have one cause, so it shows one line for each."""
MAX_LINES = 40
FULL_OF_MANY = 2
"""Changes that are shown in full below the lines of many changes, the worst first."""
_WIDEST = 200
_AT_ONCE = 100
"""Changes that are rendered at once, because a report shows a limited number of one check."""
FOLDER = Path(".nvfp4", "diffs")


def excerpt(diff: ListingDiff, *, only: Sequence[Change], threshold: Severity, run: Run, snapshot: Path) -> str:
    """Return the changes that decide a verdict, and the path of a file with the whole diff if some are not shown.

    ``only`` has these changes, worst first; the file of the diff is named after the snapshot's file.
    """
    lines = overview(diff, only=only, threshold=threshold)
    if len(only) > MAX_IN_FULL:
        lines.append(f"all of them: {_store(diff, threshold=threshold, run=run, snapshot=snapshot)}")
    elif others := len(diff.changes) - len(only):
        lines.append(f"({others} further change{'' if others == 1 else 's'} below the gate)")
    return "\n".join(f"  {line}" for line in lines)


def overview(diff: ListingDiff, *, only: Sequence[Change], threshold: Severity) -> list[str]:
    """Return the text of some changes: a few in full, or one line for each of many and the first ones in full."""
    if len(only) <= MAX_IN_FULL:
        return [*_heading(diff), *_render(only, threshold=threshold)]
    shown = list(_lines(only))
    lines = [*_heading(diff), *shown[:MAX_LINES]]
    if len(shown) > MAX_LINES:
        lines.append(f"... and {len(shown) - MAX_LINES} more")
    lines.append(f"the first {FULL_OF_MANY} in full:")
    return [*lines, *(f"  {line}" for line in _render(only[:FULL_OF_MANY], threshold=threshold))]


def _lines(changes: Sequence[Change]) -> Iterator[str]:
    """Yield one line for each change, and one for all variables that only their function's new name renames."""
    renamed = Counter(functions for change in changes if (functions := _renamed_function(change)) is not None)
    told: set[tuple[str, str]] = set()
    for change in changes:
        functions = _renamed_function(change)
        if functions is None or renamed[functions] == 1:
            yield _line(change)
        elif functions not in told:
            told.add(functions)
            old, new = functions
            yield (
                f"{change.severity.label.upper():<13} {visible(new)}.* (renamed): {renamed[functions]} layouts of "
                + (f"{visible(old)}, with the same variables and types")
            )


def _renamed_function(change: Change) -> tuple[str, str] | None:
    """Return the old and new function of an unprotected layout whose variable keeps its name; None for any other."""
    if change.kind != "renamed" or change.protected or change.old_name is None:
        return None
    old, _, before = change.old_name.rpartition(".")
    new, _, after = change.name.rpartition(".")
    return (old, new) if old != new and before == after else None


def _line(change: Change) -> str:
    """Return a change in one line: ``DIFFERENT kernel.sA: STAGE (mode 3): 3:32 -> 2:32; smem bytes 48 -> 32 B``."""
    details = [mode.text() for mode in change.modes] + [delta.text() for delta in change.deltas]
    details = [change.error] if change.error else details or list(change.reasons)
    kind = "" if change.kind == "changed" else f" ({change.kind})"
    return clip(visible(f"{change.severity.label.upper():<13} {change.name}{kind}: {'; '.join(details)}"), _WIDEST)


def _heading(diff: ListingDiff) -> Iterator[str]:
    for item in diff.headers:
        yield _header_text(item)
    counts = [f"{count} {severity.label}" for severity, count in reversed(diff.counts.items()) if count]
    yield ", ".join(counts) or "no layouts"


def _header_text(item: HeaderChange) -> str:
    return f"{visible(item.key)} {visible(item.old or 'absent')} -> {visible(item.new or 'absent')}"


def _render(changes: Sequence[Change], *, threshold: Severity) -> list[str]:
    """Return the changes as `report.terminal` renders them, without the heading and end of a report."""
    rendered: list[str] = []
    for start in range(0, len(changes), _AT_ONCE):
        check = CheckReport("", "", "failed", diff=ListingDiff(tuple(changes[start : start + _AT_ONCE])))
        lines = render_terminal(Report([check], threshold=threshold)).rstrip("\n").split("\n")
        _title, _counts, *body, _closing = lines
        rendered += [line.removeprefix("  ") for line in body]
    return rendered


def _store(diff: ListingDiff, *, threshold: Severity, run: Run, snapshot: Path) -> str:
    """Write the whole diff to a file and return its path, or another way to see it if it cannot be written."""
    root = run.options.root
    file = root / FOLDER / run.options.snapshots.relative(snapshot)
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
