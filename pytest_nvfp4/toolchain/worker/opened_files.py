"""The user's files that a compile reads besides modules: tables, parameters, sources that it executes itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_MODULES = (".py", ".pyc")
_MOST = 1000


class OpenedFiles:
    """Recorder of the files that this process opens for reading, as Python's audit events show them.

    A kernel that avoids these events only hides that its own trace is outdated.

    Args:
        watched: Returns whether a file belongs to the user.
    """

    def __init__(self, watched: Callable[[str], bool]) -> None:
        self._watched = watched
        self._files: dict[str, None] = {}

    def names(self) -> list[str]:
        """Return the absolute paths of the first files, in the order in which they were opened."""
        return list(self._files)

    def add(self, arguments: tuple[Any, ...]) -> None:
        """Record a file, from the arguments of the event ``open``."""
        if len(self._files) >= _MOST:
            return
        path, _, flags = arguments
        if type(path) is not str or path.endswith(_MODULES) or (type(flags) is int and flags & os.O_ACCMODE):
            return
        try:
            file = os.path.abspath(path)  # noqa: PTH100 - a link is opened by its own name
            if file not in self._files and self._watched(file):
                self._files[file] = None
        except (OSError, ValueError):  # the folder of this process is gone
            return
