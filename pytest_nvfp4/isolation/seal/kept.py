"""The keeper's event, as the process that started the worker reads it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pytest_nvfp4.finding import Finding

_SHOWN = 5
"""Replaced functions that a finding names."""
_Text = Annotated[str, StringConstraints(max_length=400)]


class Kept(BaseModel):
    """What the keeper saw of a worker's memory.

    Attributes:
        changed: Functions, classes and names that changed while untrusted code ran.
        more: How many more did.
        unread: Why the memory could not be compared; empty if it was.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    changed: Annotated[tuple[_Text, ...], Field(max_length=20)] = ()
    more: Annotated[int, Field(ge=0, le=1 << 32)] = 0
    unread: _Text = ""

    def findings(self) -> list[Finding]:
        """Return a ``cheat`` finding for changed code, and a warning for memory that could not be read."""
        found = []
        if self.changed:
            more = len(self.changed) + self.more - _SHOWN
            names = ", ".join(self.changed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
            found.append(
                Finding(
                    "cheat",
                    f"the kernel replaced {names}: code, defaults, closures and names of what judges or times a kernel "
                    "must stay as they are; remove the code that replaces them",
                )
            )
        if self.unread:
            found.append(
                Finding(
                    "environment",
                    f"whether the kernel replaced code that judges it is unknown, because the memory of its process "
                    f"could not be compared: {self.unread}",
                    severity="warning",
                )
            )
        return found
