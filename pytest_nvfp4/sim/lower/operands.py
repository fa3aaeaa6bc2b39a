"""The reading half of the ``Emitter``: Python lines, and operands as expressions in them.

An expression is a value as ``lanes`` defines it: an int while uniform, else an array of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.deferred import NOTHING_DEFERRED, DeferredSlots, Pending
from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.packs import Packs
from pytest_nvfp4.sim.ptx.syntax import (
    Address,
    Immediate,
    Operand,
    Register,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

_NARROW = {8: 0xFF, 16: 0xFFFF, 32: 0xFFFF_FFFF, 64: 0xFFFF_FFFF_FFFF_FFFF, 128: (1 << 128) - 1}


class Operands:
    """Lines of one block function ``block(R, w, m) -> int``, and the names that its expressions may use.

    Args:
        special: The expression of a special register by name, and its width in bits.
        symbol: The expression of a variable's or parameter's address by name.
        parameter: The byte offset of a kernel parameter in the parameter block, or None if the name is not one.
        deferred: Slots that can hold a ``Pending``; a read of one settles it first.
        apart: Slots that hold a tuple of two items (``apart``).
    """

    def __init__(
        self,
        *,
        special: Callable[[str], tuple[str, int]],
        symbol: Callable[[str], str],
        parameter: Callable[[str], int | None],
        deferred: DeferredSlots = NOTHING_DEFERRED,
        apart: frozenset[int] = frozenset(),
    ) -> None:
        self.deferred = deferred
        self.apart = apart
        self.lines: list[str] = []
        self.line_at: list[tuple[int, str]] = []
        """Index of the instruction that each line belongs to, and the name of the mask of its lanes."""
        self.globals: dict[str, Any] = {}
        self.loaded: dict[int, int] = {}
        """Slots read before they are written in this block, with their bits."""
        self.written: dict[int, int] = {}
        """Slots written in this block, with their bits."""
        self._special = special
        self._symbol = symbol
        self._parameter = parameter
        self._temporaries = 0
        self._names: dict[int, str] = {}
        self._indent = 1
        self._mask = "m"
        self._passes_on = False
        self._at = 0
        self._pinned: list[Any] = []
        self.packs = Packs(lambda slot, expression: self.line(f"v{slot} = {expression}"))

    @property
    def at(self) -> int:
        """Index of the instruction being lowered."""
        return self._at

    @property
    def mask(self) -> str:
        """Expression of the active lanes, an int: the group's lanes minus those that the guard excludes."""
        return self._mask

    def line(self, text: str) -> None:
        """Write one line."""
        self.lines.append("    " * self._indent + text)
        self.line_at.append((self._at, self._mask))

    def temporary(self, expression: str | None = None) -> str:
        """Return a fresh name, assigned if an expression is given."""
        self._temporaries += 1
        name = f"t{self._temporaries}"
        if expression is not None:
            self.line(f"{name} = {expression}")
        return name

    def constant(self, value: Any, hint: str = "k") -> str:
        """Return a name for a Python object (a function, a table, the instruction itself)."""
        known = self._names.get(id(value))
        if known is not None:
            return known
        base = getattr(value, "__name__", hint)
        base = base if isinstance(base, str) and base.isidentifier() else hint
        name = base
        while name in self.globals:
            name = f"{base}_{len(self.globals)}"
        self.globals[name] = value
        self._names[id(value)] = name
        self._pinned.append(value)
        return name

    def call(self, function: Callable[..., Any], *arguments: str) -> str:
        """Return the expression of a call of a Python function with expressions as arguments."""
        return f"{self.constant(function)}({', '.join(arguments)})"

    def width(self, operand: Operand) -> int:
        """Return the declared width in bits of a register (or of a vector's registers); 0 for an immediate."""
        if isinstance(operand, Register):
            return operand.bits
        if isinstance(operand, Vector):
            return next((item.bits for item in operand.items if isinstance(item, Register)), 0)
        if isinstance(operand, Immediate):
            return operand.bits
        if isinstance(operand, Special):
            return self._special(operand.name)[1]
        return 0

    def value(self, operand: Operand, bits: int) -> str:
        """Return the expression of a source operand as an unsigned pattern of ``bits`` (a wider register is cut to its
        low bits).

        Raises:
            Unsupported: the operand is not a value, or is narrower than ``bits``.
        """
        if isinstance(operand, Register):
            if operand.bits == 1:
                raise Unsupported(f"predicate {operand.name} used as a {bits}-bit value")
            name = self._read(operand)
            if operand.bits == bits:
                return name
            if operand.bits < bits:
                raise Unsupported(f"register {operand.name} has {operand.bits} bits, used as {bits}")
            return self.call(_cut, name, str(bits))
        if isinstance(operand, Immediate):
            if operand.bits and operand.bits != bits:
                raise Unsupported(f"a {operand.bits}-bit floating-point literal used as {bits} bits")
            return str(operand.value & _NARROW[bits])
        if isinstance(operand, Special):
            text, width = self._special(operand.name)
            if width == bits:
                return text
            return self.call(_cut if width > bits else widen, text, str(bits))
        if isinstance(operand, Symbol):
            text = self._symbol(operand.name)
            return f"({text} + {operand.offset})" if operand.offset else text
        raise Unsupported(f"operand {operand!r} is not a value")

    def values(self, operand: Operand, bits: int) -> list[str]:
        """Return the expressions of the items of a vector (or of one operand, as a list of one)."""
        items: Sequence[Operand] = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.value(item, bits) for item in items]

    def tuple(self, operand: Operand, bits: int) -> str:
        """Return the expression of a tuple of the items of a vector."""
        return "(" + "".join(f"{value}, " for value in self.values(operand, bits)) + ")"

    def predicate(self, operand: Operand) -> str:
        """Return the expression of a predicate: a register, its negation, 0, 1 or ``%is_explicit_cluster``."""
        if isinstance(operand, Immediate):
            return "True" if operand.value else "False"
        if isinstance(operand, Special) and operand.name == "is_explicit_cluster":
            return f"({self._special(operand.name)[0]} != 0)"
        if not isinstance(operand, Register) or operand.bits != 1:
            raise Unsupported(f"operand {operand!r} is not a predicate")
        name = self._read(operand)
        return f"({self.inverse(name)})" if operand.negated else name

    def inverse(self, name: str) -> str:
        """Return the expression of the inverse of a predicate held in a name."""
        return f"not {name} if {name}.__class__ is bool else {self.call(lanes.inverted, name)}"

    def address(self, operand: Operand) -> str:
        """Return the expression of the address in ``[...]``, as wide as its base: 64 bits, 32 for shared and TMEM."""
        if not isinstance(operand, (Address, TensorAddress)):
            raise Unsupported(f"operand {operand!r} is not an address")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            name = self._read(base)
            if not offset:
                return name
            mask = _NARROW[base.bits]
            return f"({name} + {offset & mask} & {mask})"
        if isinstance(base, Symbol):
            text = self._symbol(base.name)
            offset += base.offset
            return f"({text} + {offset})" if offset else text
        return str(base.value + offset)

    def parameter(self, operand: Operand) -> int | None:
        """Return the parameter-block offset of ``[name+offset]`` if the base is a kernel parameter, else None."""
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            start = self._parameter(operand.base.name)
            return None if start is None else start + operand.base.offset + operand.offset
        return None

    def coordinates(self, operand: Operand, which: int = 0) -> list[str]:
        """Return the expressions (unsigned 32 bits; reinterpret as signed) of the coordinates in ``[map, {...}]``."""
        if not isinstance(operand, TensorAddress) or which >= len(operand.vectors):
            raise Unsupported(f"operand {operand!r} has no coordinates")
        return [self.value(item, self.width(item) or 32) for item in operand.vectors[which].items]

    def _name(self, register: Register) -> str:
        return f"v{register.slot}"

    def _read(self, register: Register) -> str:
        if register.slot not in self.written and register.slot not in self.loaded:
            self.loaded[register.slot] = register.bits
        name = self._name(register)
        self.packs.need(register.slot)
        if register.slot in self.deferred.slots and not self._passes_on:
            self.line(f"if {name}.__class__ is {self.constant(Pending)}: {name} = {name}.settle()")
        return name


def _cut(value: lanes.Bits, bits: int) -> lanes.Bits:
    if isinstance(value, int):
        return value & _NARROW[bits]
    return value.astype(lanes.DTYPES[bits])


def widen(value: lanes.Bits, bits: int) -> lanes.Bits:
    """Convert a value for a wider register."""
    if isinstance(value, int):
        return value
    return value.astype(lanes.DTYPES[bits])
