"""Errors of the layout package."""

from __future__ import annotations


class LayoutError(ValueError):
    """Base class of all layout errors."""


def _of(name: str | None) -> str:
    return "" if name is None else f"{name}: "


class LayoutSyntaxError(LayoutError):
    """Text that is not in the layout notation; ``column`` (from 1) is the first invalid character of ``text``."""

    def __init__(self, text: str, column: int, expected: str, *, name: str | None = None) -> None:
        self.text, self.column, self.expected, self.name = text, column, expected, name
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        found = repr(text[column - 1 : column + 11]) if column <= len(text) else "the end of the text"
        super().__init__(
            f"{_of(name)}layout text {shown!r}: column {column} has {found} where {expected} belongs; "
            "write it as CuTe DSL's str(obj.type) prints it, "
            'for instance !cute.layout<"(4,8):(1,4)">'
        )


class PoisonedLayout(LayoutError):
    """Poisoned layout ``x``: CuTe DSL could not compute it, and its use in the kernel is undefined."""

    def __init__(self, text: str, column: int, *, name: str | None = None) -> None:
        self.text, self.column, self.name = text, column, name
        super().__init__(
            f"{_of(name)}layout text {text!r}: column {column} has the poisoned layout 'x': "
            "CuTe DSL could not compute this layout and continued without an error; fix the call that made it (a tile "
            "that does not divide, or a scale-factor layout at an MMA_K that the DSL version does not support) before "
            "trusting any result"
        )


class DynamicLayoutError(LayoutError):
    """An operation needs the value of a run-time ``?``."""

    def __init__(self, where: object, needed: str) -> None:
        super().__init__(
            f"{where}: {needed} needs the value of a run-time '?'; replace each '?' by its number first, or use only "
            "results that do not depend on it"
        )


class CompositionError(LayoutError):
    """``A o B`` is not a layout; ``index`` is the first index that fails."""

    def __init__(self, message: str, index: int | None = None) -> None:
        self.index = index
        super().__init__(message)


class ListingError(LayoutError):
    """Damaged snapshot text at ``line`` (from 1)."""

    def __init__(self, line: int, found: str) -> None:
        self.line = line
        super().__init__(
            f"layout snapshot, line {line}: {found}; restore the file from git, or rewrite it with --snapshot-update"
        )
