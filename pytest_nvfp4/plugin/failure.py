"""How a check says that a kernel did not pass it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class CheckRecord:
    """What a check found, in a form that travels from a test process to the one that reports (plain JSON values).

    Attributes:
        kernel: The kernel as the user knows it, relative to the root.
        check: The check's name with its problem.
        message: What was found, why it is wrong and what to do.
        file: The file to point at.
        line: The line in it, counted from 1.
        old: Text of the snapshot, where one was compared.
        new: Text that was compared with it.
        kind: What the texts are: ``layouts``, ``launch`` or ``codegen``.
        protected: Names of layouts that were protected.
    """

    kernel: str
    check: str
    message: str = ""
    file: str | None = None
    line: int | None = None
    old: str | None = None
    new: str | None = None
    kind: Literal["", "layouts", "launch", "codegen"] = ""
    protected: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


class CheckFailure(AssertionError):
    """A check failed. The text is what a person reads; pytest shows it without a traceback of this package.

    Attributes:
        file: The user's file it concerns.
        line: The line in it, counted from 1.
    """

    def __init__(self, text: str, *, file: str | None = None, line: int | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.line = line
