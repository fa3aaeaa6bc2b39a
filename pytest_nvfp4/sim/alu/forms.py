"""Building blocks of arithmetic lowerings: atoms, and expressions for ints and arrays.

Operands become *atoms*, a local name or a literal, so that an expression may use one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.alu.lift import kernels, spread
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Operand

BITS = {
    f"{kind}{bits}": bits
    for kind, widths in {
        "b": (8, 16, 32, 64, 128),
        "u": (8, 16, 32, 64),
        "s": (8, 16, 32, 64),
        "f": (16, 32, 64),
    }.items()
    for bits in widths
} | {"bf16": 16, "tf32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "f32x2": 64, "pred": 1}
"""Width of a value of each type."""
SCALARS = ("u16", "u32", "u64", "s16", "s32", "s64")
"""Types of scalar integer arithmetic."""
MASKS = {bits: (1 << bits) - 1 for bits in (8, 16, 32, 64, 128)}
SIGNS = {bits: 1 << bits - 1 for bits in (8, 16, 32, 64)}


def literal(text: str) -> int | None:
    """Return the number of an expression that is a literal, else None."""
    return int(text) if text.isdigit() else None


def settle(e: Emitter, text: str) -> str:
    """Return an expression as an atom: itself if it is a name or a literal, else a temporary that holds it."""
    return text if text.isidentifier() or text.isdigit() else e.temporary(text)


def atom(e: Emitter, operand: Operand, bits: int) -> str:
    """Return a source operand as a name or a literal."""
    return settle(e, e.value(operand, bits))


def atoms(e: Emitter, bits: int, *operands: Operand) -> list[str]:
    """Return the source operands of one width as atoms."""
    return [atom(e, operand, bits) for operand in operands]


def array(e: Emitter, text: str, bits: int) -> str:
    """Return an atom for use beside an array: a literal becomes an array, which numpy handles faster than an int."""
    value = literal(text)
    return text if value is None else e.constant(spread(value, bits), f"all_{value}")


def ints(*names: str) -> str:
    """Return the condition that all atoms are ints; literals are."""
    asked = dict.fromkeys(name for name in names if not name.isdigit())
    return " is ".join([f"{name}.__class__" for name in asked] + ["int"]) if asked else "True"


def both(on_ints: str, on_arrays: str, *names: str) -> str:
    """Return an expression: ``on_ints`` if all atoms are ints, else ``on_arrays``."""
    condition = ints(*names)
    return on_ints if condition == "True" else f"({on_ints} if {condition} else {on_arrays})"


def inline(e: Emitter, on_ints: str, function: Callable[..., Any], *names: str) -> str:
    """Return an expression: ``on_ints`` if all atoms are ints, else a call of ``function`` with them."""
    condition = ints(*names)
    return on_ints if condition == "True" else f"({on_ints} if {condition} else {e.call(function, *names)})"


def collapsed(e: Emitter, on_ints: str, on_arrays: str, name: str) -> str:
    """Return an expression in one atom that clears its lane bits: an array whose lanes agree becomes an int."""
    return both(on_ints, e.call(lanes.collapse, on_arrays), name)


def packed(e: Emitter, bits: int, names: Sequence[str]) -> str:
    """Return an expression of atoms of ``bits`` each packed into one value, the first lowest."""
    on_ints = " | ".join(f"{name} << {bits * number}" if number else name for number, name in enumerate(names))
    return inline(e, on_ints, _packer(bits), *names)


@kernels
def _packer(bits: int) -> Callable[..., Any]:
    def pack(*items: Any) -> Any:
        total = bits * len(items)
        if total == 128:
            whole: Any = 0
            for number, item in enumerate(items):
                whole = whole | (item if item.__class__ is int else item.astype(object)) << bits * number
            return whole
        size = max(item.size for item in items if item.__class__ is not int)  # of one warp, or of several (``gang``)
        result = np.empty(size * len(items), DTYPES[bits])
        for number, item in enumerate(items):
            result[number :: len(items)] = item
        return result.view(DTYPES[total])

    return pack
