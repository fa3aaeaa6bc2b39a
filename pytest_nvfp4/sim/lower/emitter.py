"""Writes the Python of one block of PTX: what the lowering of each opcode is given to speak with.

A lowering is a function ``(instruction, emitter) -> None``. It asks for its operands as Python expressions
(``value``, ``values``, ``predicate``, ``address``), and assigns its results (``assign`` and its kin). Expressions are
values as ``lanes`` defines them: an int while uniform, else an array of 32. Temporaries never live past the block.

A lowered instruction may only touch the warp through the names ``w`` (the ``Warp``) and ``m`` (``mask``); everything
else comes in by ``constant``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.deferred import DeferredSlots, Pending, joined, renaming, split
from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.ptx.syntax import (
    Address,
    Guard,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

__all__ = ["Emitter", "Lowering"]

Lowering = Callable[[Instruction, "Emitter"], None]

_NOTHING_DEFERRED = DeferredSlots(frozenset(), copied=False)
_NO_NOTES: Mapping[int, str] = {}
_NARROW = {8: 0xFF, 16: 0xFFFF, 32: 0xFFFF_FFFF, 64: 0xFFFF_FFFF_FFFF_FFFF, 128: (1 << 128) - 1}


class Emitter:
    """The lines of one block function ``block(R, w, m) -> int``.

    Args:
        special: The expression of a special register by name, and its width in bits.
        symbol: The expression of a variable's or parameter's address by name.
        parameter: The byte offset of a kernel parameter in the parameter block, or None if the name is not one.
        deferred: Slots that can hold a ``Pending``; a read of one settles it first.
        notes: By place, a note for the lowering of the instruction there from whoever looked at the whole kernel.
    """

    def __init__(
        self,
        *,
        special: Callable[[str], tuple[str, int]],
        symbol: Callable[[str], str],
        parameter: Callable[[str], int | None],
        deferred: DeferredSlots = _NOTHING_DEFERRED,
        notes: Mapping[int, str] = _NO_NOTES,
    ) -> None:
        self.deferred = deferred
        self.notes = notes
        self.lines: list[str] = []
        self.line_at: list[tuple[int, str]] = []
        """Index of the instruction that each line belongs to, and the name of the mask of its lanes."""
        self.globals: dict[str, Any] = {"np": __import__("numpy")}
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
        self._guarded = False
        self._mask = "m"
        self._outer = "m"
        self._masks = 0
        self._passes_on = False
        self._at = 0
        self._pinned: list[Any] = []

    # ---- for lowerings -------------------------------------------------------------------------------------------

    @property
    def at(self) -> int:
        """Index of the instruction being lowered."""
        return self._at

    @property
    def mask(self) -> str:
        """Expression of the active lanes, an int: those of the group, less what the guard excludes."""
        return self._mask

    def line(self, text: str) -> None:
        """Write one line."""
        self.lines.append("    " * self._indent + text)
        self.line_at.append((self._at, self._mask))

    def temporary(self, expression: str | None = None) -> str:
        """A fresh name, assigned if an expression is given."""
        self._temporaries += 1
        name = f"t{self._temporaries}"
        if expression is not None:
            self.line(f"{name} = {expression}")
        return name

    def constant(self, value: Any, hint: str = "k") -> str:
        """A name for a Python object (a function, a table, the instruction itself)."""
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
        """Expression of a call of a Python function with expressions as arguments."""
        return f"{self.constant(function)}({', '.join(arguments)})"

    def width(self, operand: Operand) -> int:
        """Declared width of a register (or of the registers of a vector) in bits; 0 for an immediate."""
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
        """Expression of a source operand as an unsigned pattern of ``bits`` (a wider register is cut to its low bits).

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
            return self.call(_cut if width > bits else _widen, text, str(bits))
        if isinstance(operand, Symbol):
            text = self._symbol(operand.name)
            return f"({text} + {operand.offset})" if operand.offset else text
        raise Unsupported(f"operand {operand!r} is not a value")

    def values(self, operand: Operand, bits: int) -> list[str]:
        """Expressions of the items of a vector (or of one operand, as a list of one)."""
        items: Sequence[Operand] = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.value(item, bits) for item in items]

    def tuple(self, operand: Operand, bits: int) -> str:
        """Expression of a tuple of the items of a vector."""
        return "(" + "".join(f"{value}, " for value in self.values(operand, bits)) + ")"

    def predicate(self, operand: Operand) -> str:
        """Expression of a predicate source: a register, its negation, or a literal 0 or 1."""
        if isinstance(operand, Immediate):
            return "True" if operand.value else "False"
        if not isinstance(operand, Register) or operand.bits != 1:
            raise Unsupported(f"operand {operand!r} is not a predicate")
        name = self._read(operand)
        return f"({self.inverse(name)})" if operand.negated else name

    def inverse(self, name: str) -> str:
        """Expression of the inverse of a predicate that is in a name."""
        return f"not {name} if {name}.__class__ is bool else {self.call(lanes.inverted, name)}"

    def address(self, operand: Operand) -> str:
        """Expression of the address in ``[...]``, by the width of its base: 64 bits, or 32 for shared and TMEM."""
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
        """Byte offset in the parameter block of ``[name+offset]`` if the base is a kernel parameter, else None."""
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            start = self._parameter(operand.base.name)
            return None if start is None else start + operand.base.offset + operand.offset
        return None

    def coordinates(self, operand: Operand, which: int = 0) -> list[str]:
        """Expressions (unsigned 32 bits; reinterpret as signed) of the coordinates in ``[map, {...}]``."""
        if not isinstance(operand, TensorAddress) or which >= len(operand.vectors):
            raise Unsupported(f"operand {operand!r} has no coordinates")
        return [self.value(item, self.width(item) or 32) for item in operand.vectors[which].items]

    def assign(self, operand: Operand, expression: str, bits: int) -> None:
        """Assign a result of ``bits`` to a register; a wider register gets it zero-extended; ``_`` drops it.

        A signed result for a wider register must come already extended, with the register's width as ``bits``.
        """
        if isinstance(operand, Sink):
            self.line(expression)
            return
        if not isinstance(operand, Register) or operand.bits == 1:
            raise Unsupported(f"operand {operand!r} cannot take a {bits}-bit result")
        if operand.bits < bits:
            raise Unsupported(f"register {operand.name} has {operand.bits} bits, and the result has {bits}")
        if operand.bits > bits:
            expression = self.call(_widen, expression, str(operand.bits))
        name = self._name(operand)
        if self._guarded:
            old = self._read(operand)
            new = self.temporary(expression)
            self.line(f"{name} = {new} if {self._whole} else {self._merged(operand.bits, new, old)}")
        else:
            self.line(f"{name} = {expression}")
        self.written[operand.slot] = operand.bits

    def assign_predicate(self, operand: Operand, expression: str) -> None:
        """Assign a bool or an array of 32 to a predicate register; ``_`` drops it."""
        if isinstance(operand, Sink):
            self.line(expression)
            return
        if not isinstance(operand, Register) or operand.bits != 1 or operand.negated:
            raise Unsupported(f"operand {operand!r} cannot take a predicate")
        name = self._name(operand)
        if self._guarded:
            old = self._read(operand)
            new = self.temporary(expression)
            self.line(f"{name} = {new} if {self._whole} else {self._merged(1, new, old)}")
        else:
            self.line(f"{name} = {expression}")
        self.written[operand.slot] = 1

    def assign_all(self, operand: Operand, expression: str, bits: int) -> None:
        """Assign the items of a tuple-valued expression to the registers of a vector (a lone register: a 1-tuple)."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        names = [self.temporary() for _ in items]
        self.line("".join(f"{name}, " for name in names) + "= " + expression)
        for item, name in zip(items, names, strict=True):
            if not isinstance(item, Sink):
                self.assign(item, name, bits)

    def replace_all(self, operand: Operand, name: str, bits: int) -> None:
        """After ``name = call(...)``: assign the items of the list to the registers of a vector, unless it is None."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        names = []
        for item in items:
            if not isinstance(item, Register) or item.bits != bits:
                raise Unsupported(f"operand {item!r} cannot take a {bits}-bit result")
            names.append(self._read(item))
        self.line(f"if {name} is not None: {''.join(f'{each}, ' for each in names)} = {name}")
        for item in items:
            assert isinstance(item, Register)
            self.written[item.slot] = bits

    def rename(self, instruction: Instruction, lowering: Lowering) -> None:
        """Lower a ``mov`` that may hand on a ``Pending`` by splitting or joining it; ``lowering`` does plain values."""
        renamed = renaming(instruction)
        if renamed is None or len(renamed[0]) == len(renamed[1]) or not self._touches_deferred(renamed[1]):
            lowering(instruction, self)
            return
        targets, sources = renamed
        names = [self._read(item) for item in sources if isinstance(item, Register)]
        if len(targets) == 2:
            self.line(f"if {names[0]}.__class__ is {self.constant(Pending)}:")
            self._indent += 1
            parts = self.temporary(self.call(split, names[0]))
            for number, item in enumerate(targets):
                self.assign(item, f"{parts}[{number}]", 16)
            self._indent -= 1
        else:
            whole = self.temporary(self.call(joined, *names))
            self.line(f"if {whole} is not None:")
            self._indent += 1
            self.assign(targets[0], whole, 32)
            self._indent -= 1
        self.line("else:")
        self._indent += 1
        self._passes_on = False
        lowering(instruction, self)
        self._indent -= 1

    def _touches_deferred(self, operands: Iterable[Operand]) -> bool:
        return any(isinstance(item, Register) and item.slot in self.deferred.slots for item in operands)

    def pair(self, operand: Operand) -> builtins.tuple[Operand, Operand]:
        """The two results ``a|b``; a lone operand gives it and a sink."""
        if isinstance(operand, Pair):
            return operand.first, operand.second
        return operand, Sink()

    def park_if_none(self, name: str) -> None:
        """After ``name = call(...)``: leave the block, to come back to this very instruction, if the call gave None.

        The call must have told the warp what it waits for (``Warp.wait_for``). Only for opcodes listed as blocking.
        """
        self.line(f"if {name} is None: return {~self._at}")

    # ---- for the block compiler ----------------------------------------------------------------------------------

    def leave(self, count: int, stores: Sequence[str]) -> None:
        """Write what stands before a block's end: its count of instructions and its stores to the register file."""
        if self._guarded:
            # Inside the guard of an exit: what is written here runs whether or not lanes leave.
            before = [f"w.executed += {count}", *stores]
            self.lines[-2:-2] = ["    " + text for text in before]
            self.line_at[-2:-2] = [(self._at, "m")] * len(before)
            return
        self.line(f"w.executed += {count}")
        for text in stores:
            self.line(text)

    def outdent(self) -> None:
        """Leave the guard before the instruction's end."""
        self._close_guard()

    def open_region(
        self, predicate: Register, *, negated: bool, results: Sequence[Register], live: frozenset[int]
    ) -> str:
        """Begin instructions that only the lanes run where a predicate holds; the others wait at the region's end.

        Args:
            predicate: The register.
            negated: The lanes where it does not hold.
            results: Registers that the region writes.
            live: Slots whose values the other lanes need after it.

        Returns:
            What ``close_region`` wants to know.
        """
        name = self._read(predicate)
        kept = [register for register in dict.fromkeys(results) if register.slot in live]
        for register in kept:
            self._read(register)
        outer, mask = self._mask, self._fresh_mask()
        self.line(f"{mask} = {self.call(lanes.guard_mask_not if negated else lanes.guard_mask, name, outer)}")
        self.line(f"if {mask}:")
        self._indent += 1
        self._mask = self._outer = mask
        self.line("pass")
        for register in kept:
            self.line(f"o{mask}_{register.slot} = v{register.slot}")
        return outer

    def close_region(self, outer: str, *, count: int, results: Sequence[Register], live: frozenset[int]) -> None:
        """End what ``open_region`` began; ``count`` instructions were in it."""
        mask = self._mask
        self.line(f"w.executed += {count}")
        kept = [register for register in dict.fromkeys(results) if register.slot in live]
        if kept:
            self.line(f"if {mask} != {outer}:")
            self._indent += 1
            for register in kept:
                value, old = f"v{register.slot}", f"o{mask}_{register.slot}"
                if register.slot in self.deferred.slots:
                    pending = self.constant(Pending)
                    self.line(f"if {value}.__class__ is {pending}: {value} = {value}.settle()")
                    self.line(f"if {old}.__class__ is {pending}: {old} = {old}.settle()")
                self.line(f"{value} = {self._merged(register.bits, value, old)}")
            self._indent -= 1
        self._indent -= 1
        self._mask = self._outer = outer

    def _fresh_mask(self) -> str:
        self._masks += 1
        return f"g{self._masks}"

    @property
    def _whole(self) -> str:
        return f"{self._mask} == {self._outer}"

    def _merged(self, bits: int, new: str, old: str) -> str:
        if bits == 1:
            return self.call(lanes.merge_predicate, self._mask, new, old)
        return self.call(lanes.merge, self._mask, new, old, str(bits))

    def _close_guard(self) -> None:
        self._indent -= 1
        self._guarded = False
        self._mask = self._outer

    def begin(self, instruction: Instruction) -> None:
        """Start an instruction: its guard opens an ``if``."""
        self._at = instruction.index
        # These hand a Pending on as it is; wgmma's lowering knows how to take one.
        self._passes_on = renaming(instruction) is not None or instruction.parts[:2] == ("wgmma", "mma_async")
        guard: Guard | None = instruction.guard
        self._guarded = guard is not None and instruction.root != "bra"
        if self._guarded:
            assert guard is not None
            name = self._read(guard.register)
            test = lanes.guard_mask_not if guard.negated else lanes.guard_mask
            # A merge needs the old value: note it before the `if`, where the read must be emitted.
            for register in _results(instruction):
                self._read(register)
            mask = self._fresh_mask()
            self.line(f"{mask} = {self.call(test, name, self._outer)}")
            self.line(f"if {mask}:")
            self._mask = mask
            self._indent += 1
            self.line("pass")

    def end(self) -> None:
        """End an instruction."""
        if self._guarded:
            self._close_guard()

    def _name(self, register: Register) -> str:
        return f"v{register.slot}"

    def _read(self, register: Register) -> str:
        if register.slot not in self.written and register.slot not in self.loaded:
            self.loaded[register.slot] = register.bits
        name = self._name(register)
        if register.slot in self.deferred.slots and not self._passes_on:
            self.line(f"if {name}.__class__ is {self.constant(Pending)}: {name} = {name}.settle()")
        return name


def _results(instruction: Instruction) -> list[Register]:
    """Registers that may be results: all those of the operands outside brackets, which errs on the safe side."""
    found: list[Register] = []
    for operand in instruction.operands:
        if isinstance(operand, Register):
            found.append(operand)
        elif isinstance(operand, Vector):
            found.extend(item for item in operand.items if isinstance(item, Register))
        elif isinstance(operand, Pair):
            found.extend(item for item in (operand.first, operand.second) if isinstance(item, Register))
    return found


def _cut(value: lanes.Bits, bits: int) -> lanes.Bits:
    if isinstance(value, int):
        return value & _NARROW[bits]
    return value.astype(lanes.DTYPES[bits])


def _widen(value: lanes.Bits, bits: int) -> lanes.Bits:
    if isinstance(value, int):
        return value
    return value.astype(lanes.DTYPES[bits])
