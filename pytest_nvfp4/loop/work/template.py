"""The command lines of workers and reviewers: words in which ``{name}`` stands for a value of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from pytest_nvfp4.loop.configuration.errors import ConfigError

_KEY: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


class CommandTemplate:
    """A command in which keys are replaced; ``{{`` and ``}}`` are braces, and all other braces stay.

    Args:
        words: Program and arguments.
        keys: The known keys.
        option: Name of the option in the configuration, for errors.

    Raises:
        ConfigError: A key is unknown, or there is no program.
    """

    def __init__(self, words: Sequence[str], *, keys: Sequence[str], option: str) -> None:
        if not words or not words[0]:
            raise ConfigError([f"{option} is empty; name a program and its arguments"])
        for word in words:
            if "\0" in word:
                raise ConfigError([f"{option} has an argument with a null character"])
            for found in _KEY.finditer(word):
                if found[1] is not None and found[1] not in keys:
                    known = ", ".join(f"{{{key}}}" for key in keys)
                    raise ConfigError(
                        [f"{option} has the unknown key {found[0]}; known are {known}, and {{{{ and }}}} are braces"]
                    )
        self._words = tuple(words)
        self.program = words[0]

    def filled(self, values: Mapping[str, str]) -> list[str]:
        """Return program and arguments with the values; a value is never part of more than one argument."""
        return [_KEY.sub(lambda found: values[found[1]] if found[1] else found[0][0], word) for word in self._words]
