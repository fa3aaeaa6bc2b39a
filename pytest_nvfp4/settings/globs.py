"""Globs of kernel files, relative to the folder of the settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

_MOST_GLOB = 1000
_MOST_STARS = 10
"""Stars of a glob; the time of a match grows with the length of a path to this power."""


def relative_to(path: Path, root: Path) -> str:
    """Return a path relative to a folder; one outside of the folder as it is."""
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.as_posix()


@lru_cache(maxsize=512)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """Return a glob as a regular expression: ``**`` spans folders, ``*`` and ``?`` do not."""
    parts: list[str] = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob):
        match part:
            case "**/":
                parts.append(r"(?:[^/]+/)*")
            case "**":
                parts.append(r".*")
            case "*":
                parts.append(r"[^/]*")
            case "?":
                parts.append(r"[^/]")
            case _ if part.startswith("[") and part.endswith("]"):
                parts.append("[" + part[1:].replace("[", r"\[").replace("!", "^", part[1] == "!"))
            case _:
                parts.append(re.escape(part))
    return re.compile("".join(parts))


def is_glob(text: str) -> bool:
    """Return whether a text is a glob that can be matched in bounded time."""
    try:
        glob_pattern(str(PurePosixPath(text)))
    except (re.error, RecursionError, OverflowError):
        return False
    return len(text) <= _MOST_GLOB and text.count("*") <= _MOST_STARS


def matches(relative: str, glob: str) -> bool:
    """Return whether a relative path matches a glob."""
    return glob_pattern(str(PurePosixPath(glob))).fullmatch(relative) is not None


def matches_any(path: Path, globs: Sequence[str], *, root: Path) -> bool:
    """Return whether a file below ``root`` matches one of the globs."""
    relative = relative_to(path, root)
    return any(matches(relative, glob) for glob in globs)
