"""Places of generated source text in the author's own file: ``#line`` directives for a text that stands in a literal.

CUDA source inside a Python file is a string literal, often joined from several or formatted. Each run of its lines that
also stands in the file gets a ``#line`` directive with the file's name and line, so that the messages and the line
table of any compiler name the file that the author edits. A directive stands at the beginning of a run only, and never
inside a continued line, a comment or a raw string, where it would be text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MOST_LINES: Final = 5000
"""Lines of a source beyond which only a literal that stands in the file as a whole is found."""
_LEAST: Final = 12
"""Characters of a line that identify it; a brace alone does not begin a run."""
_IDENTIFIER: Final = re.compile(r"\w")


def with_lines(source: str, files: Sequence[str], *, name: str) -> str:
    """Return the text with ``#line`` directives.

    Args:
        source: Source text in C++.
        files: Files in which it may stand, the likeliest first.
        name: Its name where no file has it.
    """
    lines = source.split("\n")
    keys = [_key(line) for line in lines]
    best: tuple[str, list[int | None]] | None = None
    most = 0
    for file in files:
        try:
            own = [_key(line) for line in Path(file).read_text(encoding="utf-8", errors="replace").split("\n")]
        except OSError:
            continue
        places = _whole(keys, own) or _pieces(keys, own)
        found = sum(place is not None for place in places)
        if found > most:
            best, most = (file, places), found
    if best is None or most * 2 < sum(1 for key in keys if len(key) >= _LEAST):
        return f'#line 1 "{_escaped(name)}"\n{source}'
    return _directed(lines, *best, name=name)


def _key(line: str) -> str:
    """Return a line as it is compared: without indentation, and without the escapes of string literals."""
    return line.strip().replace("{{", "{").replace("}}", "}").replace("\\\\", "\\")


def _whole(keys: Sequence[str], own: Sequence[str]) -> list[int | None] | None:
    """Return the number in the file of each line, if all lines but the first and the last stand there together.

    The quotes of the literal stand in the lines of the first and the last one.
    """
    inner = next((at for at, key in enumerate(keys) if len(key) >= _LEAST), None)
    if inner is None:
        return None
    for at, line in enumerate(own):
        if len(keys) == 1 and keys[0] in line:
            return [at + 1]
        if line != keys[inner] and not (inner == 0 and line.endswith(keys[0])):
            continue
        start = at - inner
        if start < 0 or start + len(keys) > len(own):
            continue
        if all(own[start + i] == keys[i] for i in range(inner + 1, len(keys) - 1)) and own[
            start + len(keys) - 1
        ].startswith(keys[-1]):
            return [start + i + 1 for i in range(len(keys))]
    return None


def _pieces(keys: Sequence[str], own: Sequence[str]) -> list[int | None]:
    places: list[int | None] = [None] * len(keys)
    if len(keys) > _MOST_LINES or len(own) > 4 * _MOST_LINES:
        return places
    matcher = difflib.SequenceMatcher(None, own, keys, autojunk=False)
    for block in matcher.get_matching_blocks():
        run = keys[block.b : block.b + block.size]
        if not any(len(key) >= _LEAST and _IDENTIFIER.search(key) for key in run):
            continue
        for i in range(block.size):
            places[block.b + i] = block.a + i + 1
    # A line between two runs that differs (a formatted one) keeps the count of the run before it.
    for at in range(1, len(keys)):
        before = places[at - 1]
        if places[at] is None and before is not None and before < len(own):
            places[at] = before + 1
    return places


def _directed(lines: Sequence[str], file: str, places: Sequence[int | None], *, name: str) -> str:
    written: list[str] = []
    expected: tuple[str, int] | None = None
    inside = False
    for number, (line, place) in enumerate(zip(lines, places, strict=True), start=1):
        here = (file, place) if place is not None else (name, number)
        continued = number > 1 and lines[number - 2].rstrip().endswith("\\")
        if here != expected and not continued and not inside:
            written.append(f'#line {here[1]} "{_escaped(here[0])}"')
            expected = here
        written.append(line)
        inside = _inside(line, inside)
        if expected is not None:
            expected = expected[0], expected[1] + 1
    return "\n".join(written)


def _inside(line: str, inside: bool) -> bool:
    """Return whether a comment of several lines or a raw string is open at the end of a line."""
    if inside:
        return "*/" not in line and ')"' not in line
    code = re.sub(r'"(?:[^"\\]|\\.)*"|//.*|/\*.*?\*/', "", line)
    return "/*" in code or bool(re.search(r'R"\w*\((?!.*\)\w*")', line))


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
