"""Atomic writing of files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_nvfp4.temporary import name_beside, remove_unfinished


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a temporary file and rename it, so that no reader ever sees a part of the content.

    Temporary files that killed processes left in the folder are removed. Text is UTF-8 with the line ends it has.

    Raises:
        OSError: The file could not be written; an old one is unchanged.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    target = path.resolve()  # the rename would replace a link
    remove_unfinished(target.parent)
    beside = name_beside(target)
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
