"""A PTX program of the corpus: an idiom of synchronisation, whole or with one of its edges changed.

An idiom's text has one statement a line, and ``//@name`` behind those that a defect changes or a finding must name. The
PTX carries a ``.loc`` for each line, so that a finding of either side names a line of the same text.

Registers that are set: %r0 thread, %r1 warp, %r2 lane, %r3 shared memory (aligned to 1,024), %r4 CTA, %r5 four times
the thread, %r6 the thread's word of shared memory, %r8 thread of the grid, %rd6 and %rd7 its words of ``x`` and ``y``,
%p10 thread 0, %p11 lane 0. Bodies take the others from 9 on. Buffers: %rd100 ``x`` (input), %rd101 ``y`` (output,
zeros), %rd102 ``f`` (flags, zeros), %rd103 ``w`` (scratch, never initialised), %rd104 ``maps`` (two tensor maps).

Nothing here needs more than numpy: the recorder runs on a machine with a GPU and a bare Python.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUFFERS", "FILE", "WORDS", "Defect", "Idiom", "Program", "Said", "Words", "inputs", "programs_of"]

WORDS = 1024
"""32-bit words of ``x``, ``y`` and ``w``."""
FILE = "program.ptx"
Words = NDArray[np.uint32]

_PROLOGUE = """
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; mov.u32 %r3, smem; mov.u32 %r4, %ctaid.x;
shl.b32 %r5, %r0, 2; add.u32 %r6, %r3, %r5; mov.u32 %r7, %ntid.x; mad.lo.u32 %r8, %r4, %r7, %r0;
mul.wide.u32 %rd5, %r8, 4; add.u64 %rd6, %rd100, %rd5; add.u64 %rd7, %rd101, %rd5;
setp.eq.u32 %p10, %r0, 0; setp.eq.u32 %p11, %r2, 0;
"""
_MODULE = """.version 8.7
.target sm_90a
.address_size 64
.file 1 "{file}"
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel({parameters})
{{
.reg .pred %p<32>; .reg .b16 %rs<8>; .reg .b32 %r<320>; .reg .b64 %rd<128>; .reg .f32 %f<64>;
{loads}
{prologue}
{body}
ret;
}}
"""
BUFFERS = ("x", "y", "f", "w", "maps")
_TAG = re.compile(r"\s*//@(\w+)\s*$")


@dataclass(frozen=True)
class Said:
    """What our analysis must say: a finding of this kind, that names the lines with these tags."""

    kind: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Defect:
    """One change of an idiom.

    Attributes:
        name: In words.
        edits: By tag, what comes instead of each line that has it (empty: nothing), or what makes it of the line.
        ours: What we must say; None if we say nothing (and ``reasons`` says why).
        hangs: Whether the kernel may never end on a device.
    """

    name: str
    edits: Mapping[str, str | Callable[[str], str]]
    ours: Said | None
    hangs: bool = False


@dataclass(frozen=True)
class Idiom:
    """A way to order accesses.

    Attributes:
        want: From ``x`` to the output of the correct program.
        fill: What ``x`` holds, if not the usual numbers.
    """

    name: str
    body: str
    want: Callable[[Words], Words]
    defects: tuple[Defect, ...]
    block: int = 64
    grid: int = 1
    cluster: int = 1
    shared: int = 8192
    fill: Callable[[], Words] | None = None


@dataclass(frozen=True)
class Program:
    """An idiom, or one with a defect."""

    idiom: Idiom
    defect: Defect | None
    lines: tuple[str, ...] = field(repr=False)
    tags: Mapping[str, tuple[int, ...]] = field(repr=False)
    """Line numbers by tag, counted from 1."""

    @property
    def name(self) -> str:
        """Idiom, and defect if there is one."""
        return self.idiom.name if self.defect is None else f"{self.idiom.name}: {self.defect.name}"

    @property
    def slug(self) -> str:
        """The name as a file's."""
        return re.sub(r"\W+", "_", self.name)

    @property
    def ptx(self) -> str:
        """The module; its kernel is ``kernel``, its parameters a pointer to each of ``BUFFERS``."""
        body = "\n".join(f".loc 1 {n} 1\n{line}" for n, line in enumerate(self.lines, 1) if line)
        return _MODULE.format(
            file=FILE,
            parameters=", ".join(f".param .b64 p{i}" for i in range(len(BUFFERS))),
            loads="\n".join(f"ld.param.b64 %rd{100 + i}, [p{i}];" for i in range(len(BUFFERS))),
            prologue=_PROLOGUE,
            body=body,
        )

    @property
    def hash(self) -> str:
        """Of the PTX."""
        return hashlib.sha256(self.ptx.encode()).hexdigest()[:16]

    @property
    def hangs(self) -> bool:
        """Whether it may never end on a device."""
        return self.defect is not None and self.defect.hangs


def inputs(idiom: Idiom) -> dict[str, NDArray[np.generic]]:
    """The buffers before the launch; ``w`` counts for its size only, ``maps`` are to be written."""
    x = (np.arange(WORDS, dtype=np.uint32) * 2654435761 >> 7).astype(np.uint32) if idiom.fill is None else idiom.fill()
    return {
        "x": x,
        "y": np.zeros(WORDS, np.uint32),
        "f": np.zeros(64, np.uint32),
        "w": np.zeros(WORDS, np.uint32),
        "maps": np.zeros(256, np.uint8),
    }


def programs_of(idiom: Idiom) -> list[Program]:
    """The correct program, then the defective ones."""
    return [_made(idiom, None), *(_made(idiom, defect) for defect in idiom.defects)]


def _made(idiom: Idiom, defect: Defect | None) -> Program:
    edits = dict(defect.edits) if defect is not None else {}
    unused = set(edits)
    lines: list[str] = []
    tags: dict[str, tuple[int, ...]] = {}
    for line in idiom.body.strip().splitlines():
        match = _TAG.search(line)
        text = _TAG.sub("", line).strip()
        if match is not None:
            tag = match[1]
            tags[tag] = (*tags.get(tag, ()), len(lines) + 1)
            if tag in edits:
                unused.discard(tag)
                edit = edits[tag]
                text = edit if isinstance(edit, str) else edit(text)
        lines.append(text)
    assert not unused, (idiom.name, unused)
    return Program(idiom, defect, tuple(lines), tags)
