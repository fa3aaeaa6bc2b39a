"""Static facts of the kernels of a PTX module.

Sources: PTX ISA, "Directives" (``.entry``, ``.maxntid``, ``.reqntid``, ``.shared``) and "tcgen05.alloc" (the number
of columns is the last operand, an immediate or a 32-bit register).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

_ENTRY = re.compile(r"\.entry\s+([\w$.]+)")
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+[\w$]+(?:\[(\d*)\])?")
_WIDTH = re.compile(r"\.shared\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\s")
_INSTRUCTION = re.compile(r"(?:@!?%?[\w$]+\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)")
_LABEL = re.compile(r"\A\s*(?:[\w$%]+:(?!:)\s*)+")
_FILE = re.compile(r'^\s*\.file\s+\d+\s+"([^"]*)"', re.MULTILINE)
_LINE_DIRECTIVE = re.compile(r"^\s*\.(?:loc|file|section)\b.*$", re.MULTILINE)
_ALLOC = re.compile(r"tcgen05\.alloc[\w.:]*\s+\[[^\]]*\]\s*,\s*(%?[\w$]+)\s*;")
_MOVE = re.compile(r"mov\.[bu]32\s+(%[\w$]+)\s*,\s*(0[xX][0-9a-fA-F]+|\d+)\s*;")
_COMMENT = re.compile(r"//.*?$|/\*.*?\*/", re.MULTILINE | re.DOTALL)

_FAMILY_WORDS = {
    "tcgen05": 2,
    "cp": 4,
    "mbarrier": 2,
    "wgmma": 2,
    "fence": 2,
    "barrier": 2,
    "griddepcontrol": 2,
    "clusterlaunchcontrol": 2,
    "tensormap": 2,
    "ld": 2,
    "st": 2,
    "red": 2,
    "atom": 2,
    "elect": 2,
    "setmaxnreg": 2,
    "bar": 2,
}


@dataclass(frozen=True, slots=True)
class PtxKernel:
    """One ``.entry`` of a module; `trace.Code` documents the fields."""

    symbol: str
    max_threads: int | None
    tmem_columns: tuple[int | None, ...]
    mix: dict[str, int]


@dataclass(frozen=True, slots=True)
class PtxModule:
    """PTX module: kernels, bytes of declared shared memory, and source files."""

    kernels: tuple[PtxKernel, ...]
    static_smem_bytes: int
    files: tuple[str, ...] = ()


def family(opcode: str) -> str:
    """Return the operation of an opcode without types: ``ld.global.v4.b32`` is ``ld.global.v4``.

    The vector width is included, so that a split store is visible.
    """
    words = opcode.split(".")
    base = words[: _FAMILY_WORDS.get(words[0], 1)]
    base += [word for word in words[len(base) :] if re.fullmatch(r"v[248]|x\d+|multicast::cluster", word)]
    return ".".join(base)


def _columns(body: str) -> tuple[int | None, ...]:
    constants: dict[str, set[int]] = {}
    for register, value in _MOVE.findall(body):
        constants.setdefault(register, set()).add(int(value, 0))
    columns: list[int | None] = []
    for operand in _ALLOC.findall(body):
        values = constants.get(operand, set()) if operand.startswith("%") else {int(operand, 0)}
        # A register with two constants is chosen at run time.
        columns.append(values.pop() if len(values) == 1 else None)
    return tuple(columns)


def _mix(body: str) -> dict[str, int]:
    mix: Counter[str] = Counter()
    for statement in re.split(r"[;{}]", _LINE_DIRECTIVE.sub("", body)):
        text = _LABEL.sub("", statement).strip()
        if text and not text.startswith(".") and (match := _INSTRUCTION.match(text)):
            mix[family(match.group(1))] += 1
    return dict(sorted(mix.items()))


def _body(text: str, start: int) -> str:
    depth, position = 0, text.find("{", start)
    if position < 0:
        return ""
    begin = position
    for match in re.finditer(r"[{}]", text[begin:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return text[begin + 1 : begin + match.start()]
    return text[begin + 1 :]


def parse(text: str) -> PtxModule:
    """Parse a module; the final NUL byte of DSL 4.4.0's files is dropped."""
    text = _COMMENT.sub("", text.replace("\0", ""))
    kernels = []
    for match in _ENTRY.finditer(text):
        body = _body(text, match.end())
        head = text[match.end() : text.find("{", match.end())]
        threads = _THREADS.search(head)
        product = math.prod(map(int, threads.groups(default="1"))) if threads else None
        kernels.append(PtxKernel(match.group(1), product, _columns(body), _mix(body)))
    smem = 0
    for line in re.findall(r"^\s*(?:\.visible\s+|\.weak\s+)?\.shared\b[^;]*;", text, re.MULTILINE):
        count, width = _SHARED.search(line), _WIDTH.search(line)
        if count and width:
            smem += int(count.group(1) or ("0" if "[" in line else "1")) * int(width.group(1)) // 8
    return PtxModule(tuple(kernels), smem, tuple(dict.fromkeys(_FILE.findall(text))))
