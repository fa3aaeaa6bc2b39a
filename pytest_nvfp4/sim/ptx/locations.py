"""The user's lines: the ``.file`` table, the names in ``.debug_str``, and ``.loc`` as ``Location``.

Column 0 marks an operation without its own line: CuTe DSL then writes a meaningless line (that of the function after
the kernel, observed with 4.4 and 4.8). Such an instruction gets the location of the one before it, which is close:
inline assembly in a helper function that is not compiled itself gets the line that computes its operands. Line 0 with a
column is nvcc's mark of code that it has moved, out of a loop for example: it gets the next line of the block.

In file names the compiler writes characters other than printable ASCII as UTF-8 bytes in octal, ``\\303\\274`` for a
u with two dots, and a quote and a backslash behind a backslash (observed with 4.4 and 4.8).

Source: PTX ISA, "Debugging Directives: .file, .loc, .section".
"""

from __future__ import annotations

import linecache
import os
import re

from pytest_nvfp4.driver.user_line import is_user_file
from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx.lexer import Token

_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPED = re.compile(rb"\\([0-7]{3}|[^0-7])")
_STRINGS = re.compile(r"\.section\s+\.debug_str\s*\{([^}]*)\}")
_COLUMN_0 = re.compile(r"\.loc\s+\d+\s+\d+\s+0+(?!\S)")
_MOVED = re.compile(r"\.loc\s+\d+\s+0+\s+0*[1-9]")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?\s*"
    r"(?:,\s*function_name\s+([A-Za-z_$][\w$]*)\s*(?:\+\s*(\d+))?\s*)?"
    r"(?:,\s*inlined_at\s+(\d+)\s+(\d+)(?:\s+(\d+))?)?\s*\Z"
)

_Place = tuple[str, int, int]
"""A file, a line and a column."""


def has_no_line(token: Token) -> bool:
    """Return whether the column of a ``.loc`` is 0."""
    return _COLUMN_0.match(token.text) is not None


def is_moved(token: Token) -> bool:
    """Return whether the line of a ``.loc`` is 0, and its column is not."""
    return _MOVED.match(token.text) is not None


def beyond_the_end(location: Location) -> bool:
    """Return whether an existing file has fewer lines: CuTe DSL 4.4 attributes lines of its own files to the user's."""
    lines = linecache.getlines(location.file)
    return bool(lines) and location.line > len(lines)


def _unescaped(name: str) -> str:
    """Return the name of a file as the file system has it."""
    if "\\" not in name:
        return name

    def byte(found: re.Match[bytes]) -> bytes:
        return bytes([int(found[1], 8) & 0xFF]) if len(found[1]) == 3 else found[1]

    return os.fsdecode(_ESCAPED.sub(byte, os.fsencode(name)))


class Locations:
    """Reader of the ``.loc`` directives of one module; ``.file`` may stand after them."""

    def __init__(self, text: str) -> None:
        self._files = {int(found[1]): _unescaped(found[2]) for found in _FILE.finditer(text)} if ".file" in text else {}
        self._strings: dict[str, bytes] = {}
        self._section = b""
        if ".debug_str" in text:
            for section in _STRINGS.finditer(text):
                self._read_strings(section[1])
        self._read: dict[str, tuple[_Place, str, _Place | None]] = {}
        self._memo: dict[tuple[str, int], Location] = {}
        self._last: dict[_Place, Location] = {}

    def find(self, token: Token) -> Location | None:
        """Return the location of a ``.loc`` directive; None for line 0 and for an undeclared file.

        What it is inlined at keeps what that line was itself inlined at. A line of a library that is inlined is the
        user's line that called it.

        Raises:
            PtxError: it is no ``.loc``.
        """
        read = self._read.get(token.text)
        if read is None:
            read = self._read[token.text] = self._parsed(token)
        place, name, at = read
        caller = self._last.setdefault(at, Location(*at)) if at is not None else None
        # A helper that another helper calls has equal directives wherever that one is inlined: the caller tells them
        # apart. A location keeps its caller, so that the identity stays unique.
        found = self._memo.get((token.text, id(caller)))
        if found is None:
            found = self._memo[token.text, id(caller)] = Location(*place, name, caller)
        if not found.line or not found.file:
            return None
        self._last[place] = found
        while found.inlined_at is not None and not is_user_file(found.file):  # a line of Triton's library
            found = found.inlined_at
        return found

    def _parsed(self, token: Token) -> tuple[_Place, str, _Place | None]:
        """Return the place of a ``.loc``, the function, and the place that it is inlined at."""
        match = _LOC.match(token.text)
        if match is None:
            raise token.error("expected .loc FILE LINE [COLUMN] [, function_name NAME] [, inlined_at FILE LINE COLUMN]")
        file, line, column, function, start, *at = match.groups()
        name = self._name(function, int(start or 0)) if function else ""
        return self._place(file, line, column), name, None if at[0] is None else self._place(*at)

    def _place(self, file: str, line: str, column: str | None) -> _Place:
        return self._files.get(int(file), ""), int(line), int(column or 0)

    def _name(self, label: str, start: int) -> str:
        data = self._strings.get(label)
        if data is None:
            return label
        return data[start:].split(b"\0", 1)[0].decode("utf-8", "replace")

    def _read_strings(self, body: str) -> None:
        """Return the bytes from each label of a ``.debug_str`` section on."""
        data = bytearray()
        starts: list[tuple[str, int]] = []
        for line in body.split("\n"):
            text = line.strip()
            label, colon, rest = text.partition(":")
            if colon:
                starts.append((label.strip(), len(data)))
                text = rest.strip()
            if text.startswith(".b8"):
                data.extend(int(number, 0) & 0xFF for number in text[3:].split(",") if number.strip())
        for name, offset in starts:
            self._strings[name] = bytes(data[offset:])
