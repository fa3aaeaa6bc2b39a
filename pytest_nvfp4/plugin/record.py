"""Record of a comparison, which a test process sends to the process that writes the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass(slots=True)
class CheckRecord:
    """One comparison, or one check item without a comparison. All values are plain JSON values.

    Attributes:
        kernel: The kernel file, relative to the root.
        check: Name of the test item.
        message: Text of the failure or the reason of a skip; empty otherwise.
        file: The file to point at.
        line: The line in it, counted from 1.
        old: Text of the snapshot, if one was compared.
        new: The text that was compared with it.
        kind: Name of the check whose snapshots have this kind of text; empty without texts.
        protected: Patterns of protected layouts.
        cause: Node id of the item whose failure has the same cause and the whole text; empty for none.
        findings: The findings of the failure (`Finding.to_dict`).
        values: What the check found, by name, for programs.
        established: What the check established, in words.
        evidence: What the check found that a page draws (``report.evidence.Evidence``); empty without a page.
        accepted: The findings that the settings accept (`plugin.accepted`).
        warnings: Warnings about the kernel (`Finding.to_dict`).
    """

    kernel: str
    check: str
    message: str = ""
    file: str | None = None
    line: int | None = None
    old: str | None = None
    new: str | None = None
    kind: str = ""
    protected: Sequence[str] = ()
    cause: str = ""
    findings: Sequence[dict[str, Any]] = ()
    values: dict[str, str] = field(default_factory=dict)
    established: Sequence[str] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    accepted: Sequence[dict[str, Any]] = ()
    warnings: Sequence[dict[str, Any]] = ()

    @property
    def changed(self) -> bool:
        """Whether two texts were compared and differ."""
        return self.old is not None and self.new is not None and self.old != self.new


RECORDS = pytest.StashKey[list[CheckRecord]]()
"""Records of an item."""
VALUES = pytest.StashKey[dict[str, str]]()
"""What the check of an item found, by name, for programs."""
ESTABLISHED = pytest.StashKey[list[str]]()
"""What the check of an item established, in words."""
EVIDENCE = pytest.StashKey[dict[str, Any]]()
"""What the check of an item found that a page draws."""
USED = pytest.StashKey[set[str]]()
"""Snapshot files that an item compared."""
