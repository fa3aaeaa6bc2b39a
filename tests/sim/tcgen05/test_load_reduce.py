"""``tcgen05.ld.red`` against an order of f32 written out, and against Python's integers."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.tcgen05.load_reduce import Reduction, load_reduced
from pytest_nvfp4.sim.tcgen05.loadstore import movement
from tests.sim.tcgen05.harness import FULL, make_ctas, own
from tests.sim.tcgen05.wide_case import make_b300s


def number(word: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", word))
    return float(value)


def reduced(words: list[int], how: Reduction) -> int:
    """The ISA's words: -0 is less than +0; NaN is left out, or makes the result NaN."""
    choose = min if how.root == "min" else max
    if how.kind == "u32":
        return choose(words)
    if how.kind == "s32":
        return choose(words, key=lambda word: word - (word >> 31 << 32))
    if how.magnitude:
        words = [word & 0x7FFF_FFFF for word in words]
    real = [word for word in words if not math.isnan(number(word))]
    if not real or (how.propagates and len(real) < len(words)):
        return 0x7FFF_FFFF
    return choose(real, key=lambda word: (number(word), math.copysign(1, number(word))))


@pytest.mark.parametrize("root", ["min", "max"])
@pytest.mark.parametrize(("kind", "magnitude", "propagates"), [
    ("u32", False, False), ("s32", False, False), ("f32", False, False), ("f32", True, False), ("f32", False, True),
    ("f32", True, True),
])  # fmt: skip
@pytest.mark.parametrize("shape", ["32x32b", "16x32bx2"])
def test_what_is_loaded_and_what_it_reduces_to(
    root: str, kind: str, magnitude: bool, propagates: bool, shape: str
) -> None:
    [cta] = make_b300s(1)
    tmem = own(cta)
    rng = np.random.default_rng(7)
    special = np.array([0, 0x8000_0000, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001, 0xFFFF_FFFF, 1, 0x8000_0001], np.uint32)
    drawn = rng.integers(0, 1 << 32, (16, 128), dtype=np.uint32)
    tmem.data[:16] = np.where(rng.random((16, 128)) < 0.4, special[rng.integers(0, 8, (16, 128))], drawn)
    tmem.data[:16, 33] = 0x7FC0_0000  # a lane of nothing but NaN
    tmem.data[:16, 34] = np.resize(np.array([0x8000_0000, 0], np.uint32), 16)  # and one of zeros
    tmem.wrote(0, 16)
    how = Reduction(root, kind, magnitude, propagates)
    move = movement(shape, 8, split=8)
    *words, best = load_reduced(cta.warps[1], FULL, 32 << 16, move, how, "ld.red", 0)
    assert len(words) == 8
    for lane in range(32):
        column = 8 if shape == "16x32bx2" and lane >= 16 else 0
        at = 32 + (lane % 16 if shape == "16x32bx2" else lane)
        held = [int(word) for word in tmem.data[column : column + 8, at]]
        assert [int(word[lane]) for word in words] == held
        assert int(best[lane]) == reduced(held, how)


def test_a_b200_has_no_such_load() -> None:
    [cta] = make_ctas()
    own(cta).wrote(0, 8)
    with pytest.raises(Fault, match="exists on sm_103"):
        load_reduced(cta.warps[0], FULL, 0, movement("32x32b", 8), Reduction("max", "f32", False, False), "ld.red", 0)
