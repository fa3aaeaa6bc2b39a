"""Findings that the owner of a repository has accepted: ``[[tool.pytest_nvfp4.accepted]]``.

An accepted finding fails no check until it expires, and every summary shows it. It is the same finding as long as
check, kernel, kind and the texts of the lines that it names are the same; line numbers may move. A finding is accepted
in the settings only, which no kernel can write: its process is sandboxed, and its parent reads them before it runs.

Only findings behind which a call goes on can be accepted: the results, their origin and later calls are then judged all
the same. A wrong result, a deadlock, an access out of bounds or a cheat never can.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from pytest_nvfp4.finding import CALL_GOES_ON
from pytest_nvfp4.settings.table import ANY, TableReader

ACCEPTABLE: Final = CALL_GOES_ON | {
    *("autotune", "capture", "lanes-rounding", "race-warning", "submission", "written-twice")
}
"""Kinds of findings that can be accepted: errors behind which a call goes on, and warnings."""
_KEYS: Final = ("check", "kernel", "kind", "text", "others", "places", "reason", "date", "expires")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_TEXT_KEYS: Final = {
    "check": (_NAME, "the name of a check, such as races, is expected"),
    "kernel": (ANY, "the path of a kernel file relative to this file is expected"),
    "kind": (_NAME, f"a kind of finding is expected: {', '.join(sorted(ACCEPTABLE))}"),
    "text": (ANY, "the text of the line that the finding names is expected"),
    "reason": (ANY, "the reason is expected"),
}


@dataclass(frozen=True, slots=True)
class AcceptedFinding:
    """One accepted finding.

    Attributes:
        check: Name of the check that reports it.
        kernel: The kernel file, relative to the folder of the settings.
        kind: Its kind (``Finding.kind``).
        text: Text of the line that it is reported at; of a finding without a line, its message without figures.
        reason: Why it is accepted.
        date: The day on which it was accepted.
        expires: The last day on which it is accepted.
        others: Texts of the other lines that it may name.
        places: Number of lines with this text at which it may occur.
    """

    check: str
    kernel: str
    kind: str
    text: str
    reason: str
    date: datetime.date
    expires: datetime.date
    others: tuple[str, ...] = ()
    places: int = 1

    def expired(self, today: datetime.date) -> bool:
        """Return whether it is no longer accepted."""
        return today > self.expires

    def is_about(self, *, kind: str, text: str) -> bool:
        """Return whether it is about the findings of a kind at a text; it need not cover all other lines of one."""
        return (self.kind, self.text) == (kind, text)

    def __str__(self) -> str:
        return f"{self.check} of {self.kernel}: {self.kind} at {self.text!r}"


def accepted_finding(reader: TableReader) -> AcceptedFinding:
    """Return the accepted finding of a table. Raises SettingsError."""
    reader.check_keys(_KEYS)
    texts = {}
    for key, (pattern, expected) in _TEXT_KEYS.items():
        value = reader.text(key, pattern, expected, None)
        if value is None or not value.strip():
            raise reader.fail(key, value, expected)
        texts[key] = value
    if texts["kind"] not in ACCEPTABLE:
        raise reader.fail(
            "kind",
            texts["kind"],
            f"a finding of this kind is never accepted; those that can be are {', '.join(sorted(ACCEPTABLE))} "
            "(nvfp4 guide checks)",
        )
    texts["kernel"] = str(PurePosixPath(texts["kernel"]))
    date, expires = reader.date("date"), reader.date("expires")
    if expires < date:
        raise reader.fail("expires", str(expires), f"a day that is not before its date, {date}, is expected")
    return AcceptedFinding(
        **texts, date=date, expires=expires, others=reader.texts("others", ()), places=reader.count("places", 1)
    )
