"""A file that keeps the beginning and the end of a stream of output, and grows while the stream runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MARK: Final = b"\n[... %d bytes dropped ...]\n"


class OutputLog:
    """Writes a stream to a file of at most about ``most`` bytes: its first half, and at least the last quarter.

    Args:
        path: The file; what it held is gone.
        most: Largest size in bytes.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path, *, most: int) -> None:
        path.unlink(missing_ok=True)  # a view may hold the old one open
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._half = max(1, most // 2)
        self._size = 0
        self._begin = self._half
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Append output. Raises OSError: the disk is full."""
        view = memoryview(data)
        while view:
            room = self._begin + self._half - self._size
            if room <= 0:
                self._shorten()
                continue
            self._size += os.pwrite(self._descriptor, view[:room], self._size)
            view = view[room:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _shorten(self) -> None:
        """Drop the first half of what follows the beginning."""
        kept = os.pread(self._descriptor, self._half // 2, self._size - self._half // 2)
        self._dropped += self._size - self._begin - len(kept)
        mark = _MARK % self._dropped
        os.ftruncate(self._descriptor, self._half)
        os.pwrite(self._descriptor, mark + kept, self._half)
        self._begin = self._half + len(mark)
        self._size = self._begin + len(kept)
