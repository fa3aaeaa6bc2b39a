"""Dot products of bytes (PTX ISA, "dp4a", "dp2a"). Evidence: PTX ISA; tested against Python's integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_nvfp4.sim.alu.forms import atoms
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, parts
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "dp4a .(u32|s32).(u32|s32)",
    "dp2a .(lo|hi).(u32|s32).(u32|s32)",
)


def _items(word: Array, kind: str, bits: int) -> Array:
    """Split each word into items, lowest first, as int64 in a last axis."""
    letter = "i" if kind == "s32" else "u"
    return parts(word, bits).view(f"{letter}{bits // 8}").reshape(-1, 32 // bits).astype(np.int64)


@kernels
def _dot_kernel(part: str, first: str, second: str) -> Kernel:
    """Return a kernel of four products of bytes, or of two of 16 bits and the low or high bytes."""
    bits = 16 if part else 8
    chosen = {"": slice(0, 4), "lo": slice(0, 2), "hi": slice(2, 4)}[part]

    def compute(a: Array, b: Array, c: Array) -> Array:
        total = (_items(a, first, bits) * _items(b, second, 8)[:, chosen]).sum(axis=1)
        result: Array = total.astype(np.uint32) + c
        return result

    return compute


def _dot(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    part = read.one("lo", "hi") if ins.root == "dp2a" else ""
    first, second = read.one("u32", "s32"), read.one("u32", "s32")
    dst, *sources = read.end(4)
    e.assign(dst, e.call(lift(_dot_kernel(part, first, second), 32, 32, 32), *atoms(e, 32, *sources)), 32)


LOWERINGS: Mapping[str, Lowering] = {"dp4a": _dot, "dp2a": _dot}
