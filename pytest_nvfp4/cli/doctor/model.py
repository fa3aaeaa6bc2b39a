"""What the doctor finds: one item for each thing it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How an item is."""

    OK = "ok"
    ABSENT = "absent"
    """Not there, and only needed for something optional."""
    WARNING = "warning"
    """There, but something about it will bite."""
    FAILED = "failed"
    """Required, and missing or not working."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at.

    Attributes:
        section: What it belongs to.
        name: What it is.
        state: How it is.
        found: What was found: a version, a path, a reason.
        fix: The command that mends it; empty where nothing is to be mended.
        needed_for: What one cannot do without it; empty for what is always needed.
    """

    section: str
    name: str
    state: State
    found: str
    fix: str = ""
    needed_for: str = ""

    def to_json(self) -> dict[str, str]:
        """The item as JSON-ready values."""
        return {
            "section": self.section,
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "fix": self.fix,
            "needed_for": self.needed_for,
        }
