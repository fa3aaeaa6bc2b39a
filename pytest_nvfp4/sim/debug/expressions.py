"""Expressions of the debugger: registers, shared memory, TMEM and tensors by name, with Python's operators.

``tidx + 1``, ``%r5 & 31``, ``smem[1024]`` (a byte), ``u32[1024]`` and ``f32[1024]`` (of shared memory, or of an address
of global memory), ``tmem[0, 5]`` (the word of a column and a lane), ``sA[3, 4]``, ``warp``, ``ctaid[0]``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.sim.debug.errors import CommandError, UnsetError
from pytest_nvfp4.sim.debug.memory import Tensor
from pytest_nvfp4.sim.debug.values import element_text, is_unset, settled
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, LANES, Tmem
from pytest_nvfp4.syntax import parse_expression

_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Name, ast.Subscript, ast.Tuple, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor, ast.RShift, ast.USub,
    ast.Invert, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_MOST = 500
_GLOBAL = 1 << 32
"""Addresses from here on are of global memory."""
_REGISTER = re.compile(r"%([A-Za-z_$][\w$]*)")


class _Items:
    """Values by index."""

    def __init__(self, item: Callable[[tuple[int, ...]], Any]) -> None:
        self._item = item

    def __getitem__(self, key: Any) -> Any:
        places = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(place, int | np.integer) for place in places):
            raise CommandError("an index is a whole number that is equal in all lanes")
        return self._item(tuple(map(int, places)))


def evaluated(text: str, w: Warp, names: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Any:
    """Return the value of an expression in a warp: a number, an array of its lanes, or the text of an element.

    Args:
        text: The expression.
        names: Slots of registers by the author's names.
        tensors: Tensors by name.

    Raises:
        CommandError: It is no expression, or a name or an index is unknown.
    """
    source = _REGISTER.sub(r"\1", text)
    try:
        tree = parse_expression(source.strip())
    except SyntaxError:
        raise CommandError(f"{text!r} is no expression") from None
    if len(text) > _MOST or not all(isinstance(node, _NODES) for node in ast.walk(tree)):
        raise CommandError(f"{text!r}: it has more than names, numbers, indices and + - * // % & | ^ >> < ==")
    values = {node.id: _value(node.id, w, names, tensors) for node in ast.walk(tree) if isinstance(node, ast.Name)}
    try:
        with np.errstate(all="ignore"):
            return eval(compile(tree, "<expression>", "eval"), {"__builtins__": {}}, values)
    except CommandError:
        raise
    except (TypeError, ZeroDivisionError, OverflowError, ValueError, IndexError) as error:
        raise CommandError(f"{text!r}: {error}") from None


def _value(name: str, w: Warp, names: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Any:
    cta = w.cta
    if name in ("smem", "u32", "f32", "tmem", "tmemf"):
        return _Items({
            "smem": lambda place: _bytes(cta, *place, size=1),
            "u32": lambda place: _bytes(cta, *place, size=4),
            "f32": lambda place: float(np.uint32(_bytes(cta, *place, size=4)).view(np.float32)),
            "tmem": lambda place: _word(cta, *place),
            "tmemf": lambda place: float(np.uint32(_word(cta, *place)).view(np.float32)),
        }[name])  # fmt: skip
    if name in tensors:
        tensor = tensors[name]

        def element(place: tuple[int, ...]) -> str:
            found = tensor.element(cta, place)
            return element_text(found.bits, tensor.info.dtype) if found.written else "uninitialised"

        return _Items(element)
    if name in names:
        return _register(name, w, names[name])
    special = {"warp": w.index, "ctaid": cta.index, "tid": w.tid, "rank": cta.rank}
    if name in special:
        return special[name]
    register = next((r for r in cta.launch.kernel.registers if r.name.lstrip("%") == name), None)
    if register is None:
        known = ", ".join(sorted({*names, *tensors})) or "none"
        raise CommandError(f"{name} is no register, tensor or known name; names of the author that are known: {known}")
    return _register(name, w, register.slot)


def _register(name: str, w: Warp, slot: int) -> Any:
    if is_unset(w, slot):
        raise UnsetError(f"{name} is not written yet")
    return settled(w.registers[slot])


def _bytes(cta: Cta, *place: int, size: int) -> int:
    shared = cta.shared
    if len(place) == 1 and place[0] >= _GLOBAL:
        return _global(cta, place[0], size)
    if len(place) != 1 or not 0 <= place[0] <= shared.size - size:
        raise CommandError(f"shared memory has the bytes 0 to {shared.size - 1}, not {place}")
    start = place[0]
    if not shared.written[start : start + size].all():
        raise UnsetError(f"byte {start} of shared memory is uninitialised, or an mbarrier's")
    return int.from_bytes(shared.data[start : start + size].tobytes(), "little")


def _global(cta: Cta, address: int, size: int) -> int:
    region = cta.launch.machine.memory.find(address)
    if region is None or address + size > region.start + region.size:
        raise CommandError(f"no memory of the device is at {address:#x}")
    start = address - region.start
    if region.initialised is not None and not region.initialised[start : start + size].all():
        raise UnsetError(f"{region.place(address)} is uninitialised")
    return int.from_bytes(region.data[start : start + size].tobytes(), "little")


def _word(cta: Cta, *place: int) -> int:
    if len(place) != 2 or not (0 <= place[0] < COLUMNS and 0 <= place[1] < LANES):
        raise CommandError(f"a word of TMEM is tmem[column, lane], of {COLUMNS} columns and {LANES} lanes, not {place}")
    tmem, (column, lane) = cta.unit(Tmem), place
    if not (tmem.full[column] or tmem.some[column, lane]):
        raise UnsetError(f"column {column}, lane {lane} of TMEM is uninitialised")
    tmem.settle(column, 1)
    return int(tmem.data[column, lane])
