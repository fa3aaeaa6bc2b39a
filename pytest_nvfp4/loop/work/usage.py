"""The disk space that folders take, and a limit on that of a running program."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pytest_nvfp4.text import plural

_BLOCK_BYTES: Final = 512
_MOST_FILES: Final = 1_000_000
_LEAST_FREE_BYTES: Final = 256 << 20
"""Free space that a program must leave, or what was free when it started if that was less."""


def occupied(folder: Path) -> tuple[int, int]:
    """Return the number of files and folders below a folder, and the bytes that they occupy; links are not followed."""
    count, total, pending = 0, 0, [folder]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                count += 1
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * _BLOCK_BYTES
                    if stat.S_ISDIR(found.st_mode):
                        pending.append(Path(entry.path))
    return count, total


class FullError(Exception):
    """A program has taken more disk space than it may. The text is a predicate."""


class UsageLimit:
    """Compares what lies in some folders with what lay there in the beginning.

    Args:
        folders: The folders; one that does not exist is empty.
        most_bytes: Bytes by which they may grow.
    """

    def __init__(self, folders: Sequence[Path], *, most_bytes: int) -> None:
        self._folders = folders
        self._start = time.monotonic()
        self._before = self._sizes()
        self._most = most_bytes
        self._least_free = min(_LEAST_FREE_BYTES, self._free() // 2)

    def check(self) -> None:
        """Raise FullError if they have grown by more, or if the disk is nearly full."""
        count, size = self._sizes()
        if size - self._before[1] > self._most:
            raise FullError(f"its files have grown by {size - self._before[1]} bytes, and {self._most} are allowed")
        if count - self._before[0] > _MOST_FILES:
            raise FullError(f"it has made more than {plural(_MOST_FILES, 'file')}")
        if self._free() < self._least_free:
            raise FullError(f"less than {self._least_free} bytes of the disk are free")

    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._start

    def _free(self) -> int:
        return shutil.disk_usage(self._folders[0]).free

    def _sizes(self) -> tuple[int, int]:
        sizes = [occupied(folder) for folder in self._folders]
        return sum(count for count, _ in sizes), sum(size for _, size in sizes)
