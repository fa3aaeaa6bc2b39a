"""Source places of instructions, for messages."""

from __future__ import annotations

import linecache
import re
from functools import lru_cache

from pytest_nvfp4.driver.user_line import is_user_file
from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx.syntax import Instruction

_LINES, _NAME_LINES = 8, 40
_NAME = re.compile(r"""\bname\s*=\s*(?:"([^"\\\n]{1,80})"|'([^'\\\n]{1,80})')""")
_OPEN, _CLOSE = "([{", ")]}"
_ASSEMBLY = re.compile(r"\basm\b")
_CALL = re.compile(
    r"[;{}]\s*(?!asm\b|if\b|for\b|while\b|switch\b|return\b|\w*assert\b|\w+_cast\b)[\w:]+(?:<[^;{}()]*>)?\s*\("
)
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//.*')
_BODY_LINES = 40


def statement(file: str, line: int, *, lines: int = _LINES) -> str:
    """Return the statement that starts at a line, joined to one line; empty if the file does not exist.

    The place of a call over several lines is its first line, which may contain only ``cute.copy(``. Brackets in strings
    and comments are counted like others; at worst the text is cut short.
    """
    text, depth = "", 0
    for number in range(line, line + lines):
        piece = linecache.getline(file, number).strip()
        depth += sum(piece.count(letter) for letter in _OPEN) - sum(piece.count(letter) for letter in _CLOSE)
        text += piece if not text or text[-1] in _OPEN or piece[:1] in _CLOSE else f" {piece}"
        if depth <= 0:
            break
    return text


def place_of(instruction: Instruction) -> str:
    """Return ``sm100.py:317``, or the PTX line if the instruction has no source line.

    A line of an inlined function is followed by the calls, the innermost first: ``gemm.py:80 called at :102, :309``.
    """
    source = instruction.location
    return described(source) if source else f"PTX line {instruction.ptx_line}"


def described(source: Location) -> str:
    """Return a line and the calls that inlined it, as ``place_of`` does."""
    (file, line), *calls = lines_of(source)
    place = f"{_base(file)}:{line}"
    if not calls:
        return place
    return f"{place} called at " + ", ".join(f"{'' if at == file else _base(at)}:{number}" for at, number in calls)


def lines_of(source: Location) -> tuple[tuple[str, int], ...]:
    """Return the file and line of a location and of the calls that inlined it, the innermost first.

    Wrappers of single instructions are the usual style of CUDA C++, where the line alone says only which instruction
    it is. Calls in a library's own files are left out.
    """
    lines = [(source.file, source.line)]
    call = source.inlined_at
    while call is not None:
        if is_user_file(call.file):
            lines.append((call.file, call.line))
        call = call.inlined_at
    return tuple(lines)


def stated(source: Location) -> tuple[str, int]:
    """Return the file and line that a finding at a location names: its own line, or that of a call.

    A function with one ``asm`` statement, and no statement that calls another function, is another name of the
    instruction, so that the call is the line that explains why it is executed.
    """
    lines = lines_of(source)
    return next((at for at in lines if not _wraps_assembly(*at)), lines[-1])


@lru_cache(maxsize=1024)
def _wraps_assembly(file: str, line: int) -> bool:
    """Return whether a line belongs to an ``asm`` statement that does the work of a function.

    It is the only one between two closing braces, and no other statement there calls a function.
    """
    start = line
    while not _ASSEMBLY.search(_code(file, start)):
        start -= 1
        if line - start > _LINES or set(_code(file, start)) & set(";}"):
            return False
    first = last = start
    while first > max(start - _BODY_LINES, 1) and "}" not in _code(file, first - 1):
        first -= 1
    while last < start + _BODY_LINES and "}" not in _code(file, last):
        last += 1
    body = "\n".join(_code(file, number) for number in range(first, last + 1))
    return len(_ASSEMBLY.findall(body)) == 1 and _CALL.search(body) is None


def _code(file: str, line: int) -> str:
    """Return a line without its strings and its comment."""
    return _TEXT.sub("", linecache.getline(file, line))


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1]


def given_name(instruction: Instruction) -> str:
    """Return the text of ``name="..."`` in the statement that an instruction comes from; nothing without one."""
    source = instruction.location
    return _name_at(source.file, source.line) if source is not None else ""


@lru_cache(maxsize=1024)
def _name_at(file: str, line: int) -> str:
    match = _NAME.search(statement(file, line, lines=_NAME_LINES))
    return (match[1] or match[2]) if match is not None else ""


def quoted(instruction: Instruction) -> str:
    """Return the place with the text of the statement that a finding names, if the file exists."""
    source = instruction.location
    text = statement(*stated(source)) if source is not None else ""
    return f"{place_of(instruction)} `{text}`" if text else place_of(instruction)
