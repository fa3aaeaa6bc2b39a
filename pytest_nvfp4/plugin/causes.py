"""One cause, one failure: the failures of a run are grouped by what is wrong, across checks and problems.

The first failure of a cause has the whole text. Each further one says in one line where that text is, and adds what the
first one does not say. The process that prints the reports groups them, so a run with xdist reads as one without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.finding import UNWRITTEN

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.plugin.failure import CheckFailure
    from pytest_nvfp4.plugin.state import Run

_ATTRIBUTE, _REFERS = "nvfp4_causes", "nvfp4_refers"
"""Attributes of reports; xdist sends them to the controlling process."""
_EFFECTS = frozenset({"mismatch", "never-written", "written-by-two"})
"""Kinds of findings about outputs. What a kernel did to its outputs does not identify the defect that did it."""
_LINE_CHARACTERS = 160
_FINDING_LINES = 8
_LABELS = 12


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause in one failure.

    Attributes:
        key: Identity: equal for all failures that one defect makes.
        text: The part of the failure about it.
        certain: The key names a place or a message. An effect on outputs only suggests that two defects are one.
    """

    key: str
    text: str
    certain: bool = True


def causes_of(failure: CheckFailure, run: Run) -> list[Cause]:
    """Return the causes of a failure, the most important one first.

    A finding with a line is identified by the line, because two kinds of finding at one statement have one cause; one
    without a line by its kind and its message without figures, which depend on the problem.
    """
    causes: dict[str, Cause] = {}
    if failure.cause is not None:
        causes[failure.cause] = Cause(failure.cause, str(failure))
    for finding in failure.findings:
        if finding.severity == "error":
            cause = _cause(finding, run)
            causes.setdefault(cause.key, cause)
    for effect in failure.effects:
        causes.setdefault(effect, Cause(effect, "", certain=False))
    if not causes:
        causes[failure.identity] = Cause(failure.identity, str(failure))
    return list(causes.values())


def _cause(finding: Finding, run: Run) -> Cause:
    file = None if finding.file is None else run.relative(Path(finding.file))
    text = "\n".join(str(replace(finding, file=file)).splitlines()[:_FINDING_LINES])
    if finding.kind in _EFFECTS:
        return Cause(finding.kind, text, certain=False)
    if finding.kind == UNWRITTEN:  # another cause than a race at that line
        return Cause(f"{UNWRITTEN} {finding.identity}", text)
    return Cause(finding.identity, text)


@dataclass(slots=True)
class _Group:
    """The failures of one cause.

    Attributes:
        first: The report that has the whole text.
        line: The first line of that text.
        failed: Node ids of all failures.
        unchecked: Node ids of items that were skipped and refer to one of these failures.
    """

    first: pytest.TestReport
    line: str
    failed: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def takes_down(self) -> str:
        """What the cause fails and leaves unchecked, with problems; empty if it is one failure."""
        if len(self.failed) + len(self.unchecked) < 2:
            return ""
        lines = [f"this cause fails {_listed(self.failed)}"]
        if self.unchecked:
            lines.append(f"not checked because of it: {_listed(self.unchecked)}")
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """What the cause fails and leaves unchecked, with counts."""
        text = f"{self.first.nodeid}: one cause fails {_counted(self.failed)}"
        return f"{text}; not checked because of it: {_counted(self.unchecked)}" if self.unchecked else text


class Causes:
    """The causes of the failures of one run."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._known: dict[tuple[str, str], _Group] = {}
        self._of_item: dict[str, _Group] = {}
        self._refers: dict[str, tuple[str, pytest.TestReport]] = {}
        self._outcomes: dict[str, str] = {}
        self._raised: set[tuple[Path, str]] = set()

    def attach(self, report: Any, item: pytest.Item, causes: Sequence[Cause]) -> None:
        """Attach the causes of a failed item, or the item that a skipped one refers to, to its report."""
        if causes:
            setattr(report, _ATTRIBUTE, [asdict(cause) for cause in causes])
            self._raised |= {(item.path, cause.key) for cause in causes}
        if report.skipped and (refers := item.stash.get(REFERS, None)) is not None:
            setattr(report, _REFERS, refers)

    def raised(self, path: Path, key: str) -> bool:
        """Return whether an item of a kernel file failed by this cause before, in this process."""
        return (path, key) in self._raised

    def outcome(self, nodeid: str) -> str | None:
        """Return the outcome of an item that this process knows of; None if it has not ended."""
        return self._outcomes.get(nodeid)

    def note_outcome(self, report: pytest.TestReport) -> None:
        """Record the outcome of an item: a failure in any of its phases is one."""
        if report.when == "call" or not report.passed:
            self._outcomes[report.nodeid] = report.outcome

    def unsettled(self) -> list[tuple[pytest.TestReport, str]]:
        """Return the reports of items that were skipped because of another one that did not fail, with the reason.

        None of them was checked, and nobody reports what is wrong.
        """
        found = []
        for nodeid, (_, report) in self._refers.items():
            refers = self._reports_for(nodeid)
            outcome = self._outcomes.get(refers)
            if outcome != "failed" and self._outcomes.get(nodeid) == "skipped":
                did = "was not run" if outcome is None else outcome if outcome == "passed" else f"was {outcome}"
                found.append((report, f"not checked: it was skipped because of {refers}, which {did}"))
        return found

    def _reports_for(self, nodeid: str) -> str:
        """Return the item that reports what is wrong for a skipped one, which may refer to it by way of others.

        With xdist an item does not know why an item of another process was skipped.
        """
        followed = {nodeid}
        while nodeid in self._refers and self._outcomes.get(nodeid, "skipped") == "skipped":
            nodeid = self._refers[nodeid][0]
            if nodeid in followed:
                break
            followed.add(nodeid)
        return nodeid

    def settle(self, report: pytest.TestReport) -> str:
        """Shorten the text of a report if an earlier one says it; return that one's node id, else an empty text."""
        if (refers := getattr(report, _REFERS, None)) is not None:
            self._refers[report.nodeid] = refers, report
        causes = [Cause(**values) for values in getattr(report, _ATTRIBUTE, ())]
        if not report.failed or not causes:
            return ""
        kernel = report.nodeid.partition("::")[0]
        certain = [cause for cause in causes if cause.certain]
        known = [self._known[kernel, cause.key] for cause in certain or causes if (kernel, cause.key) in self._known]
        new = [cause for cause in causes if (kernel, cause.key) not in self._known]
        own_line = str(report.longrepr).partition("\n")[0]
        if known:
            group = known[0]
        else:
            group = _Group(report, own_line)
            self._groups.append(group)
        group.failed.append(report.nodeid)
        self._of_item[report.nodeid] = group
        self._known |= {(kernel, cause.key): group for cause in new}
        if group.first.nodeid == report.nodeid:  # a plugin that repeats failed items reports one several times
            return ""
        how, line = ("same", group.line) if certain else ("probably the same", own_line)
        added = [cause.text for cause in new if cause.certain]
        short = line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..."
        text = f"{how} cause as {group.first.nodeid}: {short}"
        report.longrepr = "\n".join([text, *(["and, which that item does not say:"] if added else []), *added])
        return group.first.nodeid

    def finish(self) -> dict[str, str]:
        """Add to the first failure of each cause what the cause takes down; return these lines by node id."""
        for nodeid in self._refers:
            if (group := self._of_item.get(self._reports_for(nodeid))) is not None:
                group.unchecked.append(nodeid)
        added: dict[str, str] = {}
        for group in self._groups:
            if lines := group.takes_down:
                group.first.longrepr = f"{group.first.longrepr}\n{lines}"
                added[group.first.nodeid] = lines
        return added

    def summarise(self, terminal: Any) -> None:
        """Write one line for each cause that fails several items."""
        for group in self._groups:
            if group.takes_down:
                terminal.write_line(f"nvfp4: {group.summary}")


def _names(nodeids: Iterable[str]) -> list[tuple[str, str]]:
    """Return check and label of each item, without repeats."""
    names = [nodeid.rpartition("::")[2].partition("[") for nodeid in dict.fromkeys(nodeids)]
    return [(check, label.removesuffix("]")) for check, _, label in names]


def _listed(nodeids: Iterable[str]) -> str:
    labels: dict[str, list[str]] = {}
    for check, label in _names(nodeids):
        labels.setdefault(check, []).append(label)
    parts = []
    for check, of_check in labels.items():
        named = [label for label in of_check if label]
        more = f", {len(named) - _LABELS} more" if len(named) > _LABELS else ""
        parts.append(f"{check} ({', '.join(named[:_LABELS])}{more})" if named else check)
    return ", ".join(parts)


def _counted(nodeids: Iterable[str]) -> str:
    counts = Counter(check for check, _ in _names(nodeids))
    return ", ".join(f"{check} ({count})" for check, count in counts.items())


CAUSES = pytest.StashKey[Causes]()
REFERS = pytest.StashKey[str]()
"""Node id of the item that reports why an item was skipped."""
