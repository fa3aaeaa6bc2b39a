"""Tokens of PTX text: labels, braces, statements, and the directives that end with their line.

A brace opens a scope only where a statement could start, so one pattern anchored at statement starts tells scopes from
vector operands. Comments are removed first, in one pass that respects strings. So are the ``.loc`` lines inside inline
assembly, which two comments bracket: compilers write them with the line of the ``asm`` plus the line inside its text
(observed in PTX of CuTe DSL 4.4 and 4.8 and of nvcc 13.5), not a line of the user's file, and nvcc 13.5 also between
the lines of one instruction.

Source: PTX ISA, "Syntax" (comments, statements, identifiers, constants).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from pytest_nvfp4.sim.ptx.stripped import without_assembly_lines


class PtxError(ValueError):
    """Invalid or unsupported PTX: the line, its text, what is wrong and what was expected.

    Attributes:
        line: The module's line, from 1.
        text: The statement as the PTX has it.
        unsupported: True for valid PTX that is not modelled, False for PTX that is not valid.
    """

    def __init__(
        self, message: str, *, line: int = 0, text: str = "", source: str = "", unsupported: bool = False
    ) -> None:
        self.message = message
        self.line = line
        self.text = _short(text)
        self.source = source
        self.unsupported = unsupported
        place = f"{source}:{line}" if source else f"PTX line {line}"
        kind = "unsupported: " if unsupported else ""
        super().__init__(f"{place}: {kind}{message}" + (f"\n    {self.text}" if self.text else ""))

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(PtxError, line=self.line, text=self.text, source=self.source, unsupported=self.unsupported)
        return make, (self.message,)


def _short(text: str, limit: int = 200) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 4] + " ..."


class Kind(Enum):
    """Kind of a token. ``STATEMENT`` and ``DIRECTIVE`` come without their semicolon."""

    LABEL = auto()
    STATEMENT = auto()
    DIRECTIVE = auto()
    OPEN = auto()
    CLOSE = auto()
    LOC = auto()
    LINE = auto()
    """``.version``, ``.target``, ``.address_size`` or ``.file``, which end with their line."""
    FUNCTION = auto()
    """A header ``.entry name (...) .directives``, up to the ``{`` that follows."""
    PROTOTYPE = auto()
    """A header with a ``;`` instead of a body."""
    SECTION = auto()
    ENTER = auto()
    """Start of an inlined body; ``text`` is the number of the call. Only ``inlining`` makes it."""
    LEAVE = auto()
    """End of an inlined body."""
    END = auto()


class Token(NamedTuple):
    """A piece of PTX and its first line, from 1. ``shown`` is its text in the PTX where ``text`` differs."""

    kind: Kind
    text: str
    line: int
    shown: str = ""

    def error(self, message: str, *, unsupported: bool = False) -> PtxError:
        """Return an error at this token."""
        return PtxError(message, line=self.line, text=self.text, unsupported=unsupported)


_ASSEMBLY = re.compile(r"//[ \t]*begin inline asm.*?//[ \t]*end inline asm", re.DOTALL)
_LOC_IN_ASM = re.compile(r"^[ \t]*\.loc[ \t][^\n]*", re.MULTILINE)
_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(
    r"""[ \t\n\f\v]*(?:
      (?P<LABEL>[A-Za-z_$%][\w$]*)[ \t]*:(?!:)
    | (?P<STATEMENT>[A-Za-z@][^;]*);
    | (?P<LOC>\.loc[ \t][^\n]*)
    | (?P<OPEN>\{)
    | (?P<CLOSE>\})
    | (?P<LINE>\.(?:version|target|address_size|file)\b[^\n]*)
    | (?P<SECTION>\.section\b[^{;]*\{[^}]*\})
    | (?P<FUNCTION>(?:\.(?:visible|extern|weak|common)\s+)*\.(?:entry|func)\b[^;{"]*(?:"[^"\n]*"\s*;[^;{"]*)*)(?=\{)
    | (?P<PROTOTYPE>(?:\.(?:visible|extern|weak|common)\s+)*\.(?:entry|func)\b[^;{]*);
    | (?P<DIRECTIVE>\.[^;"]*(?:"[^"\n]*"[^;"]*)*);
    | (?P<EMPTY>;)
    | (?P<END>\Z)
    )""",
    re.VERBOSE,
)


def _comment(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == '"':
        return text
    if text[1] == "*":
        return " " + "\n" * text.count("\n")
    return ""


def clean(text: str) -> str:
    """Remove comments, carriage returns and the NUL that CuTe DSL 4.4 leaves at the end; keep line numbers.

    Raises:
        PtxError: a comment or a string is not closed.
    """
    if "\0" in text:
        text = text.rstrip("\0\n\r\t ") + "\n"
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "begin inline asm" in text:
        text = _ASSEMBLY.sub(lambda found: _LOC_IN_ASM.sub("", found[0]), text)
    cleaned = _COMMENT.sub(_comment, without_assembly_lines(text))
    opened = cleaned.find("/*")
    while opened >= 0:
        before = cleaned[:opened].rsplit("\n", 1)[-1]
        if before.count('"') % 2 == 0:
            raise PtxError("a comment is not closed: expected */", line=cleaned.count("\n", 0, opened) + 1)
        opened = cleaned.find("/*", opened + 2)
    return cleaned


def tokens(text: str, *, source: str = "") -> Iterator[Token]:
    """Yield the tokens of cleaned PTX. The last one is ``END``.

    Raises:
        PtxError: text that starts no statement, or a statement without its semicolon.
    """
    line = 1
    counted = 0
    position = 0
    match = _TOKEN.match
    kinds = Kind.__members__
    count = text.count
    while True:
        found = match(text, position)
        if found is None:
            raise _stuck(text, position, source)
        name = found.lastgroup
        assert name is not None
        start = found.start(name)
        line += count("\n", counted, start)
        counted = start
        position = found.end()
        if name == "EMPTY":
            continue
        body = found[name]
        yield Token(kinds[name], body, line)
        if name == "END":
            return


def _stuck(text: str, position: int, source: str) -> PtxError:
    rest = text[position:]
    start = position + len(rest) - len(rest.lstrip())
    line = text.count("\n", 0, start) + 1
    what = text[start : text.find("\n", start) if "\n" in text[start:] else len(text)]
    if ";" in text[start:]:
        message = "expected an instruction, a label, a directive or a brace"
    else:
        message = "expected ';' after this statement, found the end of the text"
    return PtxError(message, line=line, text=what, source=source)


def directive_name(token: Token) -> str:
    """Return the name of a directive. Raises PtxError if there is none."""
    found = re.match(r"\.([a-z]\w*)", token.text)
    if found is None:
        raise token.error("expected the name of a directive")
    return found[1]
