"""The one error of the door."""

from __future__ import annotations

_MOST_CHARACTERS = 500


class DoorError(ValueError):
    """Data from outside is refused. Its text is one line that names the source and what is wrong with it.

    Attributes:
        source: Where the data came from, as a noun: ``the worker's event 3``.
        problem: What is wrong, as a predicate: ``is nested deeper than 64 levels``.
    """

    def __init__(self, source: str, problem: str) -> None:
        line = " ".join(f"{source} {problem}".split())
        super().__init__(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} ...")
        self.source = source
        self.problem = problem
