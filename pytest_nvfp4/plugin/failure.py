"""How a check says that a kernel did not pass it."""

from __future__ import annotations


class CheckFailure(AssertionError):
    """A check failed. The text is what a person reads; a check item shows it without this package's own lines.

    Attributes:
        file: The user's file it concerns.
        line: The line in it, counted from 1.
    """

    def __init__(self, text: str, *, file: str | None = None, line: int | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.line = line
