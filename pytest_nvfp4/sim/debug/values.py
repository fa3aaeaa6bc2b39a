"""Values of registers and of memory as text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import BF16, E2M1, E4M3, E5M2, F16, UE8M0, FloatFormat
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp

_FORMATS: dict[str, FloatFormat] = {
    "f4E2M1FN": E2M1, "f8E4M3FN": E4M3, "f8E5M2": E5M2, "f8E8M0FNU": UE8M0, "f16": F16, "bf16": BF16,
}  # fmt: skip
"""Formats by the names of the DSL's element types."""
_SHOWN = 6
"""Lanes of an irregular value that are shown."""


def settled(value: Any) -> Any:
    """Return a register's value, computed if it was not yet."""
    return value.settle() if hasattr(value, "settle") else value


def is_unset(w: Warp, slot: int) -> bool:
    """Return whether a register still has the value of one that was never written."""
    value = w.registers[slot]
    return type(value) is int and value == w.cta.launch.program.registers[slot]


def is_float(instruction: Instruction | None) -> bool:
    """Return whether an instruction's result is a 32-bit floating-point number."""
    if instruction is None or instruction.root in ("setp", "set"):
        return False
    parts = [part for part in instruction.parts[1:] if part in ("f32", "s32", "u32", "b32", "f16", "bf16", "f64")]
    return parts[:1] == ["f32"]


def number(bits: int, *, floating: bool = False) -> str:
    """Return one value as text."""
    if floating:
        return f"{np.uint32(bits).view(np.float32):.9g}"
    return str(bits) if bits < 1 << 10 else f"{bits} ({bits:#x})"


def register_text(value: Any, mask: int, *, floating: bool = False) -> str:
    """Return the values of a mask's lanes as text: one value, a progression, or the first ones."""
    value = settled(value)
    active = lanes(mask)
    if not isinstance(value, np.ndarray):
        return str(value).lower() if isinstance(value, bool) else number(int(value), floating=floating)
    if value.dtype == bool:
        true = [lane for lane in active if value[lane]]
        return "true" if len(true) == len(active) else f"true in lanes {runs(true)}" if true else "false"
    items = [int(value[lane]) for lane in active]
    first, step = items[0], items[1] - items[0] if len(items) > 1 else 0
    if all(item == first for item in items):
        return number(first, floating=floating)
    if not floating and all(item - before == step for before, item in pairwise(items)):
        return f"{number(first)} in lane {active[0]}, {step:+} a lane"
    shown = [f"{lane}: {number(item, floating=floating)}" for lane, item in zip(active, items, strict=True)]
    more = f", ... ({len(items)} lanes)" if len(items) > _SHOWN else ""
    return f"lane {', '.join(shown[:_SHOWN])}{more}"


Value = int | bool | str
"""A value as data; one of more than 64 bits is in hexadecimal."""


def register_data(value: Any) -> Value | list[Value]:
    """Return the values of the lanes: one if all are equal, else 32."""
    value = settled(value)
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    return _plain(value)


def _plain(value: Any) -> Value:
    return value if isinstance(value, bool) else int(value) if abs(int(value)) < 1 << 64 else hex(value)


def runs(numbers: list[int]) -> str:
    """Return ascending numbers as text: ``0-3, 8``."""
    parts: list[list[int]] = []
    for item in numbers:
        if parts and item == parts[-1][1] + 1:
            parts[-1][1] = item
        else:
            parts.append([item, item])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def element_text(bits: int, dtype: str | None) -> str:
    """Return an element of a tensor as text, by the DSL's name of its type; in hexadecimal if that is unknown."""
    if dtype in _FORMATS:
        return f"{float(_FORMATS[dtype].values[bits]):g}"
    if dtype == "f32":
        return f"{np.uint32(bits).view(np.float32):.6g}"
    return str(bits) if dtype and dtype.lstrip("u").startswith("i") else f"{bits:#x}"


def words_text(words: NDArray[np.uint32]) -> str:
    """Return some 32-bit words in hexadecimal, and as floats where these are of usual size."""
    floats = words.view(np.float32)
    with np.errstate(all="ignore"):
        size = abs(floats)
        usual = bool(np.isfinite(floats).all() and ((size == 0) | ((size > 1e-6) & (size < 1e9))).all())
    hexed = " ".join(f"{word:08x}" for word in words.tolist())
    return f"{hexed} (f32 {', '.join(f'{each:.4g}' for each in floats.tolist())})" if usual else hexed
