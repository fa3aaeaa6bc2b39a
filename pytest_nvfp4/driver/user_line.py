"""Which line of the user's Python asked for something."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

__all__ = ["UserLine", "user_line"]

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_THEIRS = ("torch", "cutlass", "cuda", "numpy", "nvidia_cutlass_dsl", "triton")
"""Packages whose lines are not the user's."""
_DEPTH = 2
"""Lines that are told of a call in a call."""


class UserLine(NamedTuple):
    """A line of a file, the function that it is in, and where the user's code called that."""

    file: str
    line: int
    function: str
    caller: UserLine | None = None

    def __str__(self) -> str:
        called = f", called at {self.caller}" if self.caller is not None else ""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}{called}"


def user_line() -> UserLine | None:
    """The innermost line that is neither this package's nor a library's; None where there is none."""
    lines: list[tuple[str, int, str]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < _DEPTH:
        code = frame.f_code
        if _users(code.co_filename):
            lines.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    found: UserLine | None = None
    for line in reversed(lines):
        found = UserLine(*line, caller=found)
    return found


@lru_cache(maxsize=4096)
def _users(file: str) -> bool:
    if file.startswith(("<", _PACKAGE)):
        return False
    installed = f"{os.sep}site-packages{os.sep}"
    if installed in file:
        return Path(file.rpartition(installed)[2]).parts[0] not in _THEIRS
    return not file.startswith(_LIBRARY)
