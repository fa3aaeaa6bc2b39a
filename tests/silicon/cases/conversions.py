"""Conversions of every 16-bit input, and of many 32-bit ones: values on the grid of the target, halfway, and beside."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tests.silicon.cases.arithmetic import accepted
from tests.silicon.cases.spelled import Operands, spelled_case
from tests.silicon.model import BITS, Case

__all__ = ["cases"]

BLOCK = 1024
EVERY = np.arange(1 << 16, dtype=np.uint64)
FROM_16 = r"cvt(\.\w+)*\.(f16|bf16|e4m3x2|e5m2x2) %r0, %h1|cvt(\.\w+)*\.(f16|bf16|u16|s16|u8|s8)\.(f16|bf16) %h0, %h1"
FROM_HALVES = r"cvt(\.\w+)*\.(e4m3x2|e5m2x2)\.(b?f16x2) .*"
FROM_F32 = r"cvt(\.\w+)*\.(f16|bf16|tf32|f16x2|bf16x2|e4m3x2|e5m2x2|s32|u32|f32|u8|s8|s16|u16)\.f32 .*"


def cases() -> Iterator[Case]:
    texts = [text for text in accepted() if text.startswith("cvt.")]
    for name, pattern, given in (
        ("every-16-bit", FROM_16, _operands(h=EVERY)),
        (
            "every-half",
            FROM_HALVES,
            _operands(r=EVERY | (EVERY * np.uint64(40503) & np.uint64(0xFFFF)) << np.uint64(16)),
        ),
        ("many-f32", FROM_F32, _operands(r=_interesting(1), other=_interesting(2))),
    ):
        found = [text for text in texts if re.fullmatch(pattern, text)]
        for at in range(0, len(found), 12):
            part = [(text, BITS) for text in found[at : at + 12]]
            yield spelled_case(f"conversions.{name}.{at // 12}", part, given, block=BLOCK, chunked=True)


def _interesting(seed: int) -> NDArray[np.uint64]:
    """65,536 f32: every 16-bit upper half, with a lower half of zero, 0x8000 (a tie of bf16), one beside, or anything.

    The ties of the other targets are among the first kind: f16 (13 bits dropped), tf32 (13), e4m3 (20), e5m2 (21).
    """
    random = np.random.default_rng(seed)
    lower = random.choice(np.array([0, 0x8000, 0x7FFF, 0x8001, 0x1000, 0x0FFF, 0x1001], np.uint64), EVERY.size)
    anything = random.integers(0, 1 << 16, EVERY.size, np.uint64)
    lower = np.where(random.integers(0, 4, EVERY.size) == 0, anything, lower)
    random.shuffle(upper := EVERY.copy())
    return upper << np.uint64(16) | lower


def _operands(
    h: NDArray[np.uint64] | None = None, r: NDArray[np.uint64] | None = None, other: NDArray[np.uint64] | None = None
) -> Operands:
    nothing = np.zeros(EVERY.size, np.uint64)
    halves = np.stack([nothing, h if h is not None else nothing, *[nothing] * 4])
    words = np.stack(
        [nothing, r if r is not None else nothing, other if other is not None else nothing, *[nothing] * 3]
    )
    return Operands(halves.astype(np.uint16), words.astype(np.uint32), words, nothing.astype(np.uint32))
