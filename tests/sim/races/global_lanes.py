"""Accesses of the lanes of one warp to global memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.sim.races.programs import finding_kinds

PLACES = (
    "mul.wide.u32 %rd1, %r2, 4; add.u64 %rd2, %rd100, %rd1; xor.b32 %r7, %r2, 1; mul.wide.u32 %rd1, %r7, 4;"
    "add.u64 %rd3, %rd100, %rd1; setp.eq.u32 %p3, %r2, 0; cvt.u64.u32 %rd1, %r2; add.u64 %rd4, %rd100, %rd1;"
    "mul.wide.u32 %rd1, %r2, 512; add.u64 %rd5, %rd101, %rd1;"
)
"""%rd2 the lane's word, %rd3 its neighbour's, %rd4 the lane's byte of x; %rd5 its row of y; %p3 of lane 0."""


def lanes(body: str, *, warps: int = 1) -> list[str]:
    buffers = {"x": np.zeros(1024, np.uint32), "y": np.zeros(32 * 128, np.uint32)}
    return finding_kinds(PLACES + body, block=(32 * warps, 1, 1), buffers=buffers)


LANES, BYTES = 8, 12


def by_definition(program: Sequence[tuple[Any, ...]]) -> bool:
    """Whether two lanes touch one byte, one of them to write it, and no meeting lies between."""
    before: list[tuple[int, int, bool]] = []
    for kind, places, mask in program:
        if kind == "meet":
            before = []
            continue
        now = [(lane, places[lane], kind == "st") for lane in range(LANES) if mask >> lane & 1]
        if any(i != j and p == q and (v or w) for i, p, v in before for j, q, w in now):
            return True
        before += now
    return False
