"""Inline assembly in PTX without comments, as fatbinary leaves it in an extension of torch.

nvcc 13.5 writes ``.loc`` with the line of an ``asm`` plus the line inside its text (see ``lexer``), and fatbinary
removes the comments that bracket the text. Empty lines are left: one before the text, two or more behind it (observed
with 13.5; a text that begins with an empty line is not recognised).
"""

from __future__ import annotations

import re
from typing import Final

_SINCE: Final = (9, 3)
"""The PTX ISA of CUDA 13.3: nvcc and NVRTC up to 13.2 write no such lines."""
_VERSION: Final = re.compile(r"^\.version[ \t]+(\d+)\.(\d+)", re.MULTILINE)
_LOC: Final = re.compile(r"[ \t]*(\.loc[ \t]+\d+)[ \t]+(\d+)([ \t,].*)?$")


def without_assembly_lines(text: str) -> str:
    """Empty the ``.loc`` lines inside inline assembly if comments do not say where it is."""
    version = _VERSION.search(text)
    if version is None or (int(version[1]), int(version[2])) < _SINCE or "//" in text:
        return text
    lines = text.split("\n")
    statement: tuple[str, int, str] | None = None
    """The last ``.loc`` outside of assembly: its file, line and the rest."""
    first = inside = empty = 0
    """The first line of the assembly, the ``.loc`` lines in it so far, and the empty lines before this line."""
    for number, line in enumerate(lines):
        if not line.strip():
            empty += 1
            continue
        if empty > 1:
            first = 0
        elif empty and not first:
            first, inside = number, 0
        empty = 0
        if (found := _LOC.match(line)) is None:
            continue
        file, at, rest = found[1], int(found[2]), found[3] or ""
        if first and statement == (file, at - (number - first - inside), rest):
            lines[number] = ""
            inside += 1
        else:
            statement, first = (file, at, rest), 0
    return "\n".join(lines)
