"""The errors of the layout package: what was found, why it is wrong, what to do next."""

from __future__ import annotations


class LayoutError(ValueError):
    """Anything wrong with a layout; the parent of every error of this package."""


def _of(name: str | None) -> str:
    return "" if name is None else f"{name}: "


class LayoutSyntaxError(LayoutError):
    """A text is not in the layout notation; ``text`` is the whole of it and ``column`` (from 1) is where it breaks."""

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
    """CuTe DSL printed ``x``: the layout could not be computed, and what the kernel does with it is undefined."""

    def __init__(self, text: str, column: int, *, name: str | None = None) -> None:
        self.text, self.column, self.name = text, column, name
        super().__init__(
            f"{_of(name)}layout text {text!r}: column {column} has the poisoned layout 'x': "
            "CuTe DSL could not compute this layout and went on without an error; look at the call that made it (a "
            "tile that does not divide, or a scale-factor layout at an MMA_K that the DSL version does not support) "
            "before trusting any result"
        )


class DynamicLayoutError(LayoutError):
    """A value is needed where the layout has a run-time ``?``."""

    def __init__(self, where: object, needed: str) -> None:
        super().__init__(
            f"{where}: {needed} needs a value where there is a run-time '?'; put the numbers of the problem in place "
            "of the '?' first, or ask only for what does not depend on it"
        )


class CompositionError(LayoutError):
    """``A o B`` has no layout, or the one computed is not the composed function; ``index`` is where it first fails."""

    def __init__(self, message: str, index: int | None = None) -> None:
        self.index = index
        super().__init__(message)


class ListingError(LayoutError):
    """A snapshot text is damaged; ``line`` (from 1) is where."""

    def __init__(self, line: int, found: str) -> None:
        self.line = line
        super().__init__(
            f"layout snapshot, line {line}: {found}; restore the file from git, or write it anew with --snapshot-update"
        )
