"""Static facts of the kernels of a PTX module.

Sources: PTX ISA, "Directives" (``.entry``, ``.maxntid``, ``.reqntid``, ``.shared``) and "tcgen05.alloc" (the number
of columns is the last operand, an immediate or a 32-bit register).

The text comes from a kernel's process and is read in the user's: no expression may take more than linear time on any
text, so that none scans on for an end that does not come.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pytest_nvfp4.driver import ptx_module

_INSTRUCTION = re.compile(r"(?:@!?%?[\w$]+\s+)?([a-z]\w*(?:(?:\.|::)\w+)*)")
_LABEL = re.compile(r"\A\s*(?:[\w$%]+:(?!:)\s*)+")
_FILE = re.compile(r'^[ \t]*\.file\s+\d+[ \t]+"([^"\n]*)"', re.MULTILINE)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(?:loc|file|section)\b.*$", re.MULTILINE)
_ALLOC = re.compile(r"tcgen05\.alloc[\w.:]{0,80}\s+\[[^\]\[;]{0,200}\]\s*,\s*(%?[\w$]+)\s*;")
_MOVE = re.compile(r"mov\.[bu]32\s+(%[\w$]+)\s*,\s*(0[xX][0-9a-fA-F]{1,16}|\d{1,20})\s*;")
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|\d{1,20}")
COMMENT = re.compile(r"//[^\n]*|/\*(?s:.*?(?:\*/|\Z))")
"""A comment of PTX, also one that does not end."""

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
        constants.setdefault(register, set()).add(_integer(value))
    columns: list[int | None] = []
    for operand in _ALLOC.findall(body):
        if operand.startswith("%"):
            values = constants.get(operand, set())
        else:
            values = {_integer(operand)} if _INTEGER.fullmatch(operand) else set()
        # A register with two constants is chosen at run time.
        columns.append(values.pop() if len(values) == 1 else None)
    return tuple(columns)


def _integer(text: str) -> int:
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)


def _mix(body: str) -> dict[str, int]:
    mix: Counter[str] = Counter()
    for statement in re.split(r"[;{}]", _LINE_DIRECTIVE.sub("", body)):
        text = _LABEL.sub("", statement).strip()
        if text and not text.startswith(".") and (match := _INSTRUCTION.match(text)):
            mix[family(match.group(1))] += 1
    return dict(sorted(mix.items()))


def parse(text: str) -> PtxModule:
    """Parse a module; the final NUL byte of DSL 4.4.0's files is dropped."""
    scanned = ptx_module.scan(text)
    kernels = tuple(
        PtxKernel(entry.name, entry.max_threads, _columns(entry.body), _mix(entry.body))
        for entry in scanned.entries
        if entry.name and entry.body
    )
    files = dict.fromkeys(_FILE.findall(COMMENT.sub("", text.replace("\0", ""))))
    return PtxModule(kernels, ptx_module.shared_bytes(scanned), tuple(files))
