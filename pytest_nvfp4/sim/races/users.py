"""Which threads can use what they load, where the index of a thread alone decides it.

Triton replicates a small tensor over the lanes and warps of a CTA: all of them load an element, and the guard of the
store, made of ``%tid``, lets one of them store it. Where such a tensor is updated in place, a warp may load an element
before or after another one has stored it; no value of its own depends on which. A load is therefore no access of the
threads that every guard between the value and its uses keeps from these. A guard is evaluated in three values: that of
``and(%tid == 0, m)`` is false for other threads whatever m is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.ptx.roles import results
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Kernel, Operand, Register, Special
from pytest_nvfp4.sim.ptx.uses import Uses

_WARP = 32
_DEPTH = 32


class _Value(NamedTuple):
    """A value of each thread, and the threads for which it is known."""

    value: NDArray[np.int64]
    known: NDArray[np.bool_]


class ThreadGuards:
    """The guards of a kernel, as far as they follow from the index of a thread.

    Args:
        kernel: The kernel.
        block: Threads of a CTA, by axis.
    """

    def __init__(self, kernel: Kernel, block: tuple[int, int, int]) -> None:
        self._instructions = kernel.instructions
        self._block = block
        self._threads = block[0] * block[1] * block[2]
        self._made: dict[int, list[Instruction]] = {}
        for ins in kernel.instructions:
            for register in results(ins):
                self._made.setdefault(register.slot, []).append(ins)
        self._values: dict[int, _Value] = {}

    def users(self, uses: Uses) -> tuple[int, ...] | None:
        """Return the mask of the lanes that can use a loaded value, by warp; None for a value that all may use."""
        if not uses.all or uses.exchanges or any(self._instructions[at].guard is None for at in uses.all):
            return None
        using = np.zeros(self._threads, bool)
        for at in uses.all:
            guard = self._instructions[at].guard
            assert guard is not None
            value = self._register(guard.register, 0)
            using |= ~(value.known & ((value.value != 0) == guard.negated))
            if using.all():
                return None
        padded = np.zeros(-(-self._threads // _WARP) * _WARP, bool)
        padded[: self._threads] = using
        return tuple(lanes.bits_of(row) for row in padded.reshape(-1, _WARP))

    # ---- values ------------------------------------------------------------------------------------------------------

    def _unknown(self) -> _Value:
        return _Value(np.zeros(self._threads, np.int64), np.zeros(self._threads, bool))

    def _constant(self, value: int) -> _Value:
        return _Value(np.full(self._threads, value, np.int64), np.ones(self._threads, bool))

    def _register(self, register: Register, depth: int) -> _Value:
        value = self._values.get(register.slot)
        if value is None:
            made = self._made.get(register.slot, [])
            alone = len(made) == 1 and made[0].guard is None and depth < _DEPTH
            value = self._computed(made[0], depth + 1) if alone else self._unknown()
            if depth < _DEPTH:
                self._values[register.slot] = value
        return _Value(np.int64(1) - value.value, value.known) if register.negated else value

    def _operand(self, operand: Operand, depth: int) -> _Value:
        if isinstance(operand, Register):
            return self._register(operand, depth)
        if isinstance(operand, Immediate) and not operand.bits:
            return self._constant(operand.value)
        if isinstance(operand, Special) and operand.name in ("tid.x", "tid.y", "tid.z"):
            x, y, _ = self._block
            linear = np.arange(self._threads)
            value = {"x": linear % x, "y": linear // x % y, "z": linear // (x * y)}[operand.name[-1]]
            return _Value(value, np.ones(self._threads, bool))
        return self._unknown()

    def _computed(self, ins: Instruction, depth: int) -> _Value:
        """Return the result of an instruction where it and its operands are small enough to have no sign."""
        kind = ins.parts[-1]
        function = (_OF_PREDICATES if kind == "pred" else _FUNCTIONS).get(".".join(ins.parts[:-1]))
        if function is None or kind not in _LIMITS or not isinstance(ins.operands[0], Register):
            return self._unknown()
        given = [self._operand(each, depth) for each in ins.operands[1:]]
        signs = ins.root in ("and", "add")  # an operand may stand for a negative number, such as a mask
        known = np.logical_and.reduce([each.known & (signs | _small(each.value, kind)) for each in given])
        value = np.asarray(function(*(each.value for each in given)), np.int64)
        if (decides := _DECIDING.get((ins.root, kind == "pred"))) is not None:  # whatever the other operand is
            for each in given:
                alone = each.known & (each.value == decides)
                value, known = np.where(alone, decides, value), known | alone
        return _Value(value, known & _small(value, kind))


_LIMITS = {"pred": 2} | {f"{sign}{bits}": 1 << min(bits - 1, 31) for sign in "bus" for bits in (16, 32, 64)}
"""Values below which a type's additions and shifts do not overflow and its comparisons do not depend on a sign."""
_DECIDING = {("and", True): 0, ("and", False): 0, ("or", True): 1}
"""The operand that alone decides the result, by root and whether it is of predicates."""


def _small(value: NDArray[np.int64], kind: str) -> NDArray[np.bool_]:
    return (value >= 0) & (value < _LIMITS[kind])


def _shift(by: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.clip(by, 0, 62)


_LOGIC: dict[str, Callable[..., Any]] = {
    "mov": lambda a: a,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_OF_PREDICATES = {**_LOGIC, "not": lambda a: 1 - a}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_LOGIC,
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "mad.lo": lambda a, b, c: a * b + c,
    "shl": lambda a, by: a << _shift(by),
    "shr": lambda a, by: a >> _shift(by),
    "setp.eq": np.equal,
    "setp.ne": np.not_equal,
    "setp.lt": np.less,
    "setp.le": np.less_equal,
    "setp.gt": np.greater,
    "setp.ge": np.greater_equal,
    "setp.lo": np.less,
    "setp.ls": np.less_equal,
    "setp.hi": np.greater,
    "setp.hs": np.greater_equal,
}


@lru_cache(maxsize=4096)
def part_of(pattern: Pattern, mask: int) -> tuple[int, Pattern]:
    """Return what some lanes of a pattern access, and its distance from the pattern's lowest address."""
    offsets = pattern.offsets[[bool(mask >> lane & 1) for lane in pattern.active]]
    return int(offsets.min()), Pattern(offsets - offsets[0], mask & pattern.mask, pattern.size)
