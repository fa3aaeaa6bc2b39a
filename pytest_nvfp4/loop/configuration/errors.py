"""The error of a configuration. It imports nothing, so that the command line can name it without a library."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """A configuration cannot be used.

    Attributes:
        problems: What is wrong; each names the file, the line where it is known, the key and the way out.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
