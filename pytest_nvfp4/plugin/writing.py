"""Atomic writing of text files."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_STALE_S = 3600.0


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that no reader ever sees a part of the text.

    Temporary files that killed processes left are removed.

    Raises:
        OSError: The file could not be written; an old one is unchanged.
    """
    target = path.resolve()  # the rename would replace a link
    _remove_stale(target)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
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


def _remove_stale(target: Path) -> None:
    with contextlib.suppress(OSError):
        for left in target.parent.iterdir():
            if left.name.startswith(f".{target.name}.") and left.suffix == ".tmp":
                with contextlib.suppress(OSError):
                    if time.time() - left.stat().st_mtime > _STALE_S:
                        left.unlink()
