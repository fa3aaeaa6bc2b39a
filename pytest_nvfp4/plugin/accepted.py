"""Accepted findings of a run: which findings of an item the settings accept, and which entries match none.

See `settings.accepted` for what can be accepted, and by whom. A finding is compared by texts of lines, which this
process reads from the kernel's files. If it names a line that its entry does not, or occurs at more places than the
entry has, it has changed, and is not accepted.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.bench.line_texts import LineTexts
from pytest_nvfp4.settings.globs import relative_to
from pytest_nvfp4.text import clip, printed

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding
    from pytest_nvfp4.plugin.state import KernelCase, Run
    from pytest_nvfp4.settings import AcceptedFinding

PROPERTY = "nvfp4_accepted"
"""Property of test reports, and so of JUnit, that holds an accepted finding."""
_PLACE = re.compile(r"[^\s:()'\"]{1,400}:\d{1,7}\b")
_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines that a finding names, by their texts.

    Attributes:
        text: The line that it is reported at; its message without figures if it has no line.
        others: The other lines.
    """

    text: str
    others: tuple[str, ...]

    @classmethod
    def of(cls, finding: Finding, texts: LineTexts) -> Lines:
        """Return the lines of a finding."""
        own = _one_line(finding.text or "") or _one_line(finding.first_line)
        named = (texts(place) for place in _PLACE.findall(finding.message))
        at = texts(f"{finding.file}:{finding.line}")
        return cls(own, tuple(sorted({text for text in named if text and text not in (own, at)})))


def _one_line(text: str) -> str:
    return clip(" ".join(printed(text).split()), _MOST_CHARACTERS)


class Acceptance:
    """The findings of one item that are accepted."""

    def __init__(self, case: KernelCase, check: str, run: Run) -> None:
        self._entries = run.accepted(case.path, check)
        self._honoured = run.options.accepted
        self._run = run
        root = run.options.snapshots.root_of(case.path)
        self._kernel = relative_to(case.path, root)
        self._texts = LineTexts(case.path, root)
        self._records: dict[tuple[AcceptedFinding, str | None, int | None], dict[str, Any]] = {}

    @property
    def records(self) -> list[dict[str, Any]]:
        """The accepted findings so far, as JSON-ready values; ``shown`` is the text for people."""
        return list(self._records.values())

    def described(self, finding: Finding) -> dict[str, Any]:
        """Return a finding as JSON-ready values, with what an entry says that would accept it; None if none can."""
        from pytest_nvfp4.settings import ACCEPTABLE

        known = None
        if finding.kind in ACCEPTABLE:
            known = {**asdict(Lines.of(finding, self._texts)), "kernel": self._kernel}
        return finding.to_dict() | {"acceptable": known}

    def rest(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings that are not accepted, and record the others.

        One that an entry is about, but no longer covers, says why.
        """
        if not self._entries:
            return list(findings)
        left: list[Finding] = []
        places: dict[AcceptedFinding, set[object]] = {}
        judged = [(finding, *self._entry(finding)) for finding in findings]
        for finding, entry, _ in judged:
            if entry is not None:
                places.setdefault(entry, set()).add((finding.file, finding.line))
        for finding, entry, why in judged:
            reason = why
            if entry is not None and len(places[entry]) > entry.places:
                reason = f"it is accepted at {entry.places} and found at {len(places[entry])} lines of this text"
            if entry is None or reason:
                left.append(replace(finding, message=f"{finding.message}\n  {reason}") if reason else finding)
            else:
                self._record(finding, entry)
        return left

    def _entry(self, finding: Finding) -> tuple[AcceptedFinding | None, str]:
        """Return the entry that accepts a finding, else None and why one that is about it does not; empty for none."""
        from pytest_nvfp4.settings import ACCEPTABLE

        if finding.kind not in ACCEPTABLE:
            return None, ""
        lines = Lines.of(finding, self._texts)
        about = [entry for entry in self._entries if entry.is_about(kind=finding.kind, text=lines.text)]
        why = ""
        for entry in about:
            if not self._honoured:
                why = f"it is accepted in the settings ({entry.reason}), and --nvfp4-accepted=off ignores that"
            elif entry.expired(_today()):
                why = f"it was accepted until {entry.expires}: {entry.reason}"
            elif new := sorted(set(lines.others) - set(entry.others)):
                why = f"it is accepted in the settings, but not with the line {new[0]!r}"
            else:
                return entry, ""
        return None, why

    def _record(self, finding: Finding, entry: AcceptedFinding) -> None:
        file = None if finding.file is None else self._run.relative(Path(finding.file))
        place = "" if finding.line is None else f"{file}:{finding.line}: "
        message, reason = printed(finding.message.partition("\n")[0]), printed(entry.reason)
        self._records[entry, file, finding.line] = {
            "check": entry.check,
            "kernel": entry.kernel,
            "kind": finding.kind,
            "text": entry.text,
            "message": message,
            "file": file,
            "line": finding.line,
            "reason": reason,
            "date": entry.date.isoformat(),
            "expires": entry.expires.isoformat(),
            "shown": f"{place}{message} (accepted until {entry.expires}: {reason})",
        }


def unmatched(entries: Iterable[AcceptedFinding], records: Iterable[Mapping[str, Any]]) -> list[AcceptedFinding]:
    """Return the entries of which there is no record."""
    found = {(each["check"], each["kernel"], each["kind"], each["text"]) for each in records}
    return [entry for entry in entries if (entry.check, entry.kernel, entry.kind, entry.text) not in found]


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


ACCEPTANCE = pytest.StashKey[Acceptance]()
WARNED = pytest.StashKey[list[dict[str, Any]]]()
"""Warnings of an item about its kernel (`Finding.to_dict`)."""
