"""Emitter of the Python of one block of PTX, the interface of every opcode's lowering.

A lowering is a function ``(instruction, emitter) -> None``. It requests its operands as Python expressions (``value``,
``values``, ``predicate``, ``address``) and assigns its results (``assign`` and related methods). Expressions are values
as ``lanes`` defines them: an int while uniform, else an array of 32. Temporaries never outlive the block.

A lowered instruction may only access the warp through the names ``w`` (the ``Warp``) and ``m`` (``mask``); everything
else enters through ``constant``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.deferred import NOTHING_DEFERRED, DeferredSlots, Pending, joined, renaming, split
from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.apart import merge_apart
from pytest_nvfp4.sim.lower.operands import Operands, widen
from pytest_nvfp4.sim.ptx.roles import results as written
from pytest_nvfp4.sim.ptx.syntax import Guard, Instruction, Operand, Pair, Register, Sink, Vector

Lowering = Callable[[Instruction, "Emitter"], None]

_NO_NOTES: Mapping[int, str] = {}


class Emitter(Operands):
    """The assigning half of the emitter: results, guards, and masked regions; ``Operands`` is the reading half.

    Args:
        special, symbol, parameter, deferred, apart: See ``Operands``.
        notes: Notes for lowerings by place, from an analysis of the whole kernel.
        used: Whether any instruction of the kernel reads a slot.
    """

    def __init__(
        self,
        *,
        special: Callable[[str], tuple[str, int]],
        symbol: Callable[[str], str],
        parameter: Callable[[str], int | None],
        deferred: DeferredSlots = NOTHING_DEFERRED,
        apart: frozenset[int] = frozenset(),
        notes: Mapping[int, str] = _NO_NOTES,
        used: Callable[[int], bool] = lambda _slot: True,
    ) -> None:
        super().__init__(special=special, symbol=symbol, parameter=parameter, deferred=deferred, apart=apart)
        self.notes = notes
        self.used = used
        self._guarded = False
        self._outer = "m"
        self._masks = 0
        self._products: dict[str, int] = {}
        """By the name of a mask, the products of its lanes that no line counts yet."""

    # ---- for lowerings -------------------------------------------------------------------------------------------

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
        self.packs.overwritten(operand.slot)
        if operand.bits > bits:
            expression = self.call(widen, expression, str(operand.bits))
        self._store(operand, expression)

    def assign_predicate(self, operand: Operand, expression: str) -> None:
        """Assign a bool or an array of 32 to a predicate register; ``_`` drops it."""
        if isinstance(operand, Sink):
            self.line(expression)
            return
        if not isinstance(operand, Register) or operand.bits != 1 or operand.negated:
            raise Unsupported(f"operand {operand!r} cannot take a predicate")
        self.packs.overwritten(operand.slot)
        self._store(operand, expression)

    def _store(self, register: Register, expression: str) -> None:
        """Write a register; under a guard, only in the guard's lanes."""
        name = self._name(register)
        if self._guarded:
            old = self._read(register)
            new = self.temporary(expression)
            self.line(f"{name} = {new} if {self._whole} else {self.merged(register, self._mask, new, old)}")
        else:
            self.line(f"{name} = {expression}")
        self.written[register.slot] = register.bits

    def assign_packed(
        self, operand: Operand, expression: str, items: Sequence[str], sources: Iterable[Operand], *, bits: int
    ) -> None:
        """Assign ``expression``, which packs ``items`` of ``bits`` each: ``sources``, temporaries or literals."""
        total = bits * len(items)
        if isinstance(operand, Register) and operand.slot in self.apart:
            expression = f"({', '.join(items)})"
        if self._indent > 1 or not isinstance(operand, Register) or operand.bits != total:
            self.assign(operand, expression, total)
            return
        slots = [item.slot for item in sources if isinstance(item, Register)]
        if operand.slot in slots:
            self.assign(operand, expression, total)
            return
        self.packs.add(operand.slot, expression, items, slots, bits=bits)
        self.written[operand.slot] = total

    def items(self, operand: Operand, targets: Iterable[Operand], *, bits: int) -> tuple[str, ...] | None:
        """Return the names of the ``bits``-wide items that a register was packed from, if known, for ``targets``."""
        if not isinstance(operand, Register):
            return None
        found = self.packs.items(operand.slot, bits=bits)
        if found is None:
            if operand.slot not in self.apart:
                return None
            name = self._read(operand)
            return self.temporary(f"{name}[0]"), self.temporary(f"{name}[1]")
        sources = self.packs.sources(operand.slot)
        if any(isinstance(item, Register) and item.slot in sources for item in targets):
            return tuple(self.temporary(name) for name in found)
        return found

    def assign_all(self, operand: Operand, expression: str, bits: int) -> None:
        """Assign the items of a tuple-valued expression to a vector's registers (a lone register: a 1-tuple)."""
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
            self.packs.overwritten(item.slot)
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
        self.packs.need_all()
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
        """Return the two results ``a|b``; a lone operand gives it and a sink."""
        if isinstance(operand, Pair):
            return operand.first, operand.second
        return operand, Sink()

    def park_if_none(self, name: str) -> None:
        """After ``name = call(...)``: if the call returned None, leave the block and return to this instruction later.

        The call must have registered the wait (``Warp.wait_for``). Only for opcodes listed as blocking.
        """
        self.line(f"if {name} is None: return {~self._at}")

    # ---- for the block compiler ----------------------------------------------------------------------------------

    def leave(self, counting: str, stores: Sequence[str]) -> None:
        """Write what stands before a block's end: the count of its instructions and its stores to the register file."""
        if self._guarded:
            # Inside the guard of an exit: these lines run whether or not lanes leave.
            before = [counting, *self._counted_products("m"), *stores]
            self.lines[-2:-2] = ["    " + text for text in before]
            self.line_at[-2:-2] = [(self._at, "m")] * len(before)
            return
        for text in (counting, *self._counted_products("m"), *stores):
            self.line(text)

    def multiply(self, products: int) -> None:
        """Count the products of the instruction being lowered, in each active lane."""
        if self._guarded:
            self.line(f"w.products += {products} * {self._mask}.bit_count()")
        else:
            self._products[self._mask] = self._products.get(self._mask, 0) + products

    def _counted_products(self, mask: str) -> list[str]:
        products = self._products.pop(mask, 0)
        return [f"w.products += {products} * {mask}.bit_count()"] if products else []

    def outdent(self) -> None:
        """Leave the guard before the instruction's end."""
        self._close_guard()

    def open_region(
        self, predicate: Register, *, negated: bool, results: Sequence[Register], live: frozenset[int]
    ) -> str:
        """Begin a region that only the lanes run where a predicate holds; the others wait at its end.

        Args:
            predicate: Predicate register.
            negated: Whether the region runs where the predicate is false.
            results: Registers that the region writes.
            live: Slots whose values the other lanes need after it.

        Returns:
            The outer mask, an argument of ``close_region``.
        """
        name = self._read(predicate)
        self.packs.need_all()
        merged = [register for register in dict.fromkeys(results) if register.slot in live]
        for register in merged:
            self._read(register)
        for register in results:
            self.packs.overwritten(register.slot)
        outer = self._mask
        self._outer = mask = self._open_mask(name, negated=negated)
        for register in merged:
            self.line(f"o{mask}_{register.slot} = v{register.slot}")
        return outer

    def close_region(self, outer: str, *, counting: str, results: Sequence[Register], live: frozenset[int]) -> None:
        """End the region of ``open_region``; ``counting`` counts its instructions."""
        mask = self._mask
        for text in (counting, *self._counted_products(mask)):
            self.line(text)
        merged = [register for register in dict.fromkeys(results) if register.slot in live]
        if merged:
            self.line(f"if {mask} != {outer}:")
            self._indent += 1
            for register in merged:
                value, old = f"v{register.slot}", f"o{mask}_{register.slot}"
                if register.slot in self.deferred.slots:
                    pending = self.constant(Pending)
                    self.line(f"if {value}.__class__ is {pending}: {value} = {value}.settle()")
                    self.line(f"if {old}.__class__ is {pending}: {old} = {old}.settle()")
                self.line(f"{value} = {self.merged(register, mask, value, old)}")
            self._indent -= 1
        self._indent -= 1
        self._mask = self._outer = outer

    def _open_mask(self, name: str, *, negated: bool) -> str:
        """Open an ``if`` for the lanes where a predicate holds; return the name of their mask."""
        self._masks += 1
        mask = f"g{self._masks}"
        test = lanes.guard_mask_not if negated else lanes.guard_mask
        self.line(f"{mask} = {self.call(test, name, self._mask)}")
        self.line(f"if {mask}:")
        self._mask = mask
        self._indent += 1
        self.line("pass")
        return mask

    @property
    def _whole(self) -> str:
        return f"{self._mask} == {self._outer}"

    def merged(self, register: Register, mask: str, new: str, old: str) -> str:
        """Return an expression of a register's value: ``new`` in the lanes of a mask, and ``old`` in the others."""
        if register.slot in self.apart:
            return self.call(merge_apart, mask, new, old)
        if register.bits == 1:
            return self.call(lanes.merge_predicate, mask, new, old)
        return self.call(lanes.merge, mask, new, old, str(register.bits))

    def _close_guard(self) -> None:
        self._indent -= 1
        self._guarded = False
        self._mask = self._outer

    def lanes_of(self, predicate: Register, *, negated: bool) -> str:
        """Return an expression of the mask of the lanes where a predicate holds, or does not."""
        return self.call(lanes.guard_mask_not if negated else lanes.guard_mask, self._read(predicate), self._mask)

    def begin(self, instruction: Instruction) -> None:
        """Start an instruction: its guard opens an ``if``."""
        self._at = instruction.index
        # These pass a Pending on unchanged; wgmma's lowering accepts one.
        self._passes_on = renaming(instruction) is not None or instruction.parts[:2] == ("wgmma", "mma_async")
        guard: Guard | None = instruction.guard
        self._guarded = guard is not None and instruction.root != "bra"
        if self._guarded:
            assert guard is not None
            name = self._read(guard.register)
            self.packs.need_all()
            # A merge needs the old value: note it before the `if`, where the read must be emitted.
            for register in written(instruction):
                self._read(register)
            self._open_mask(name, negated=guard.negated)

    def end(self) -> None:
        """End an instruction."""
        if self._guarded:
            self._close_guard()
