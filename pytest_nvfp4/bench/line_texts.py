"""Texts of the author's lines, for snapshots that name lines: a text stays where a number moves with every edit."""

from __future__ import annotations

import tokenize
from collections.abc import Sequence
from pathlib import Path

from pytest_nvfp4.text import visible

_MOST_CHARACTERS = 100
_MOST_BYTES = 4 << 20


class LineTexts:
    """The texts of the lines of a kernel's files. Only files below its folder or the root are read.

    Args:
        kernel: The kernel's file.
        root: The folder of the project.
    """

    def __init__(self, kernel: Path, root: Path) -> None:
        self._kernel = kernel.resolve()
        self._root = root.resolve()
        self._files: dict[str, Sequence[str]] = {}

    def __call__(self, place: str) -> str:
        """Return the text of ``file:line`` without double blanks and control characters; empty if it is not known."""
        file, _, number = place.rpartition(":")
        if not file or not number.isdecimal() or len(number) > 7:
            return ""
        if file not in self._files:
            self._files[file] = self._lines(file)
        lines = self._files[file]
        text = lines[int(number) - 1] if 0 < int(number) <= len(lines) else ""
        return " ".join(visible(text.strip()).split())[:_MOST_CHARACTERS].strip()

    def _lines(self, file: str) -> Sequence[str]:
        folders = (self._kernel.parent, *self._kernel.parent.parents)
        inside = [folder for folder in folders if folder == self._kernel.parent or folder.is_relative_to(self._root)]
        for path in (folder / file for folder in inside):
            try:
                real = path.resolve()
                if not any(real.is_relative_to(folder) for folder in inside) or real.stat().st_size > _MOST_BYTES:
                    continue
                with tokenize.open(real) as stream:
                    return stream.read().split("\n")  # as Python counts lines: a form feed ends none
            except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
                continue
        return ()
