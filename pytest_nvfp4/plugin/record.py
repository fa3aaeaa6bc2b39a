"""What a check found, in a form that travels from a test process to the one that reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest

Kind = Literal["", "layouts", "launch", "codegen", "cost"]
"""What the texts of a record are; empty for none."""


@dataclass(slots=True)
class CheckRecord:
    """One comparison, or one check without any; all plain JSON values.

    Attributes:
        kernel: The kernel as the user knows it, relative to the root.
        check: The name of the test item.
        message: What was found, why it is wrong and what to do.
        file: The file to point at.
        line: The line in it, counted from 1.
        old: Text of the snapshot, where one was compared.
        new: Text that was compared with it.
        kind: What the texts are.
        protected: Patterns of layouts that were protected.
    """

    kernel: str
    check: str
    message: str = ""
    file: str | None = None
    line: int | None = None
    old: str | None = None
    new: str | None = None
    kind: Kind = ""
    protected: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CheckRecord:
        """The record of the values that ``to_dict`` gave."""
        return cls(**{**data, "protected": tuple(data["protected"])})

    @property
    def changed(self) -> bool:
        """Whether something was compared and is not, letter by letter, what it was."""
        return self.old is not None and self.new is not None and self.old != self.new


RECORDS = pytest.StashKey[list[CheckRecord]]()
"""What the checks of an item found."""
