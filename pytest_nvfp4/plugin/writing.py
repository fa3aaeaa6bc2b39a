"""Atomic writing of text files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_nvfp4.temporary import name_beside, remove_unfinished


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that no reader ever sees a part of the text.

    Temporary files that killed processes left in the folder are removed.

    Raises:
        OSError: The file could not be written; an old one is unchanged.
    """
    target = path.resolve()  # the rename would replace a link
    remove_unfinished(target.parent)
    beside = name_beside(target)
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
