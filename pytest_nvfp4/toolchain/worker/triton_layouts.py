"""Named layouts of a Triton kernel, from the intermediate form in which its compiler has chosen them (TTGIR).

A value is a tensor, a block of shared memory or tensor memory, or a tensor descriptor. Its name is that of the
variable, which Triton keeps in locations; without one it is the operation. Encodings are written out:
``#ttg.nvmma_shared<...>`` for the alias ``#shared``. Left out are barriers, tensors of integers and of pointers, which
are mostly indices, and tensors without a variable, which are steps of a computation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

from pytest_nvfp4.toolchain.worker.capture import Captured

_ALIAS = re.compile(r"^(#\w+) = (#(?:ttn?g|tt)\.\S.*)$", re.MULTILINE)
_USE = re.compile(r"#[A-Za-z_]\w*(?![\w.])")
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_OF_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"\((.*)\)')
_CALL = re.compile(r"callsite\((\S+) at (\S+)\)")
_FUNCTION = re.compile(r'^\s*tt\.func (?:public |private )?@"?([\w.$]+)"?\(', re.MULTILINE)
_PARAMETER = re.compile(r"%[\w.]+: (!tt\.tensordesc<[^>]*>) loc\(([^)\"]*|\"[^\"]*\"\([^)]*\))\)")
_VALUE = re.compile(r'^\s*%[\w$]+ = "?([\w.]+)"?\W.*? loc\((#loc\d*)\)$')
_BARRIER = re.compile(r"!ttg\.memdesc<(?:\d+x)*1xi64,")
_LAYOUT = re.compile(
    r"(?:!ttg\.memdesc|!tt\.tensordesc)<.*#ttn?g\.|tensor<(?:\d+x)+(?!i(?:1|16|32|64),)[a-zA-Z]\w*, #ttn?g\."
)
_DEPTH = 8


class _Place(NamedTuple):
    name: str
    file: str
    line: int


def layouts(modules: Iterable[str], *, own: Callable[[str], bool]) -> list[Captured]:
    """Return the named layouts of modules in TTGIR; the second distinct type of a name is ``name#2``.

    Args:
        modules: The texts of the modules.
        own: Returns whether a source file is the kernel's.
    """
    types: dict[str, dict[str, Captured]] = {}
    for text in modules:
        aliases = dict(_ALIAS.findall(text))
        place = _places(dict(_LOCATION.findall(text)), own)
        for function, operation, kind, location in _values(text):
            whole, where = _expanded(kind, aliases), place(location)
            step = whole.startswith("tensor<") and not where.name
            if step or not _LAYOUT.match(whole) or _BARRIER.match(whole) or not where.file or "tensor<" in whole[1:]:
                continue
            name = f"{function}.{''.join(where.name.split()) or operation}"
            known = types.setdefault(name, {})
            if whole not in known:
                shown = f"{name}#{len(known) + 1}" if known else name
                known[whole] = Captured(shown, whole, where.file, where.line)
    return [value for known in types.values() for value in known.values()]


def _values(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the function, the operation, the type and the location of each value."""
    function = ""
    for line in text.splitlines():
        if (begins := _FUNCTION.match(line)) is not None:
            function = begins[1]
            for kind, location in _PARAMETER.findall(line):
                yield function, "parameter", kind, location
        elif (value := _VALUE.match(line)) is not None:
            yield function, value[1].rpartition(".")[2], _last_type(line[: line.rindex(" loc(")]), value[2]


def _last_type(line: str) -> str:
    """Return what follows the last arrow, colon or ``to`` outside of brackets."""
    depth = 0
    line = line.replace("> to ", "> -> ")
    for at in range(len(line) - 1, 0, -1):
        pair = line[at - 1 : at + 1]
        if pair == "->":
            if depth == 0:
                return line[at + 1 :].strip()
        elif line[at] in ">])}":
            depth += 1
        elif line[at] in "<[({":
            depth -= 1
        elif pair == " :" and depth == 0:
            return line[at + 1 :].strip()
    return ""


def _expanded(kind: str, aliases: dict[str, str]) -> str:
    for _ in range(_DEPTH):
        longer = _USE.sub(lambda use: aliases.get(use[0], use[0]), kind)
        if longer == kind:
            break
        kind = longer
    return kind


def _places(locations: dict[str, str], own: Callable[[str], bool]) -> Callable[[str], _Place]:
    """Return a function from the text of a location to the variable and the kernel's own line."""

    @cache
    def place(text: str, depth: int = _DEPTH) -> _Place:
        text = locations.get(text, text)
        if not depth:
            return _Place("", "", 0)
        if (file := _OF_FILE.fullmatch(text)) is not None:
            return _Place("", file[1], int(file[2])) if own(file[1]) else _Place("", "", 0)
        if (named := _NAMED.fullmatch(text)) is not None:
            return place(named[2], depth - 1)._replace(name=named[1])
        if (call := _CALL.fullmatch(text)) is not None:
            inner = place(call[1], depth - 1)
            return inner if inner.file else place(call[2], depth - 1)
        return _Place("", "", 0)

    return place
