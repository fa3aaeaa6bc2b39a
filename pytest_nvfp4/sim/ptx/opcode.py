"""The reader of dotted opcodes: every lowering takes an instruction's modifiers apart with it.

A lowering states its grammar as a sequence of calls, one a modifier group, in the order of the PTX ISA's syntax line:
``one`` for a required group, ``maybe`` for an optional one, ``has`` for a flag, ``end`` for the operands. What the
calls do not take is not modelled, and ``end`` reports it by name.
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Operand, Vector


def item_count(operand: Operand) -> int:
    """Return the number of registers of an operand: the items of a vector, else 1."""
    return len(operand.items) if isinstance(operand, Vector) else 1


class OpcodeReader:
    """Reader of the modifiers and operands of one instruction.

    Args:
        ins: The instruction.
        taken: Number of leading parts that name the instruction and are skipped.
        ordered: Whether modifiers must stand in the order of the calls. The compilers of CUDA, MLIR and Triton put the
            modifiers of copies, loads and atomics in different orders, and ptxas accepts each.
    """

    def __init__(self, ins: Instruction, taken: int = 1, *, ordered: bool = True) -> None:
        self.ins = ins
        self.opcode = ins.opcode
        self._rest = list(ins.parts[taken:])
        self._taken: list[tuple[tuple[str, ...], str]] = []
        self._ordered = ordered

    def maybe(self, *names: str, anywhere: bool = False) -> str:
        """Take an optional modifier: return the next one if it is one of ``names``, else an empty string.

        Args:
            names: The group's modifiers.
            anywhere: Whether this group may stand at any place of an ordered opcode.
        """
        for index, part in enumerate(self._rest if anywhere or not self._ordered else self._rest[:1]):
            if part in names:
                self._taken.append((names, part))
                return self._rest.pop(index)
        return ""

    def has(self, *names: str, anywhere: bool = False) -> bool:
        """Take an optional modifier; return whether there was one of ``names``."""
        return bool(self.maybe(*names, anywhere=anywhere))

    def one(self, *names: str, anywhere: bool = False) -> str:
        """Take a required modifier, one of ``names``. Raises Unsupported."""
        found = self.maybe(*names, anywhere=anywhere)
        if not found:
            listed = ", ".join(f".{name}" for name in names)
            if self._ordered and not anywhere and self._rest:
                raise self.refuse(f".{self._rest[0]} where {'one of ' if len(names) > 1 else ''}{listed} is expected")
            raise self.refuse(f"{listed} is missing" if len(names) == 1 else f"none of {listed}")
        return found

    def each(self, *names: str) -> None:
        """Take several required modifiers, in this order. Raises Unsupported."""
        for name in names:
            self.one(name)

    def part(self) -> str:
        """Take the next modifier, whatever it is; an empty string if none is left."""
        return self._rest.pop(0) if self._rest else ""

    def last(self, *names: str) -> str:
        """Take the type, one of ``names``, which decides how the others are read: the last modifier.

        Without an order it may be followed by modifiers of other kinds (DeepGEMM: ``stmatrix...shared.b16.trans``).
        """
        for index in range(len(self._rest) - 1, -1, -1):
            if self._rest[index] in names:
                return self._rest.pop(index)
            if self._ordered:
                break
        raise self.refuse(f"type .{self._rest[-1] if self._rest else ''} is not modelled")

    def done(self) -> None:
        """Raise Unsupported if a modifier is left."""
        if self._rest:
            part = self._rest[0]
            first = next((taken for names, taken in self._taken if part in names), None)
            why = "is not modelled here" if first is None else f"is a second one of its kind, after .{first}"
            raise self.refuse(f"modifier .{part} {why}")

    def operands(self, *counts: int) -> tuple[Operand, ...]:
        """Return the operands, whose number must be one of ``counts``. Raises Unsupported."""
        if len(self.ins.operands) not in counts:
            raise self.refuse(f"{len(self.ins.operands)} operands, {' or '.join(map(str, counts))} expected")
        return self.ins.operands

    def end(self, *counts: int) -> tuple[Operand, ...]:
        """Return the operands, once no modifier is left and their number is one of ``counts``. Raises Unsupported."""
        self.done()
        return self.operands(*counts)

    def immediate(self, operand: Operand, name: str) -> int:
        """Return the value of an operand that must be an integer literal. Raises Unsupported."""
        if not isinstance(operand, Immediate) or operand.bits:
            raise self.refuse(f"{name} must be an immediate integer, found {operand!r}")
        return operand.value

    def items(self, operand: Operand, count: int, what: str = "values") -> None:
        """Check the number of registers of an operand. Raises Unsupported."""
        if (given := item_count(operand)) != count:
            raise self.refuse(f"{given} {what}, {count} expected")

    def refuse(self, why: str) -> Unsupported:
        """Return the exception that names the opcode and the reason."""
        return Unsupported(f"{self.opcode}: {why}")
