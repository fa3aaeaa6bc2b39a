"""Reference implementations of warp collectives."""

from __future__ import annotations


def shuffled(mode: str, a: list[int], b: list[int], c: list[int]) -> tuple[list[int], list[int]]:
    """Return the values and predicates by the pseudocode of the PTX ISA ("shfl.sync"), one thread at a time."""
    values, flags = [], []
    for lane in range(32):
        bval, cval, segment = b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31
        highest = (lane & segment) | (cval & (segment ^ 31))
        lowest = lane & segment
        j = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": lowest | (bval & (segment ^ 31))}[mode]
        inside = j >= highest if mode == "up" else j <= highest
        values.append(a[j if inside else lane])
        flags.append(int(inside))
    return values, flags
