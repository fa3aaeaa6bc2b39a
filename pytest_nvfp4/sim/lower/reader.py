"""Takes an opcode apart, modifier by modifier, in the order in which the PTX ISA lists them."""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand

__all__ = ["Reader"]


class Reader:
    """Takes an opcode's modifiers from the left; what nobody takes is refused.

    Args:
        ins: The instruction.
        taken: How many of its parts are taken already: those that name it.
    """

    def __init__(self, ins: Instruction, taken: int = 1) -> None:
        self.ins = ins
        self._rest = list(ins.parts[taken:])

    def maybe(self, *names: str) -> str:
        """The next modifier if it is one of ``names``, else an empty string."""
        if self._rest and self._rest[0] in names:
            return self._rest.pop(0)
        return ""

    def has(self, *names: str) -> bool:
        """Whether the next modifier is one of ``names``; if so it is taken."""
        return bool(self.maybe(*names))

    def one(self, *names: str) -> str:
        """The next modifier, which must be one of ``names``. Raises Unsupported."""
        found = self.maybe(*names)
        if not found:
            said = f".{self._rest[0]}" if self._rest else "nothing"
            raise self.refuse(f"{said} where one of {', '.join('.' + name for name in names)} is modelled")
        return found

    def done(self) -> None:
        """Raise Unsupported if a modifier is left."""
        if self._rest:
            raise self.refuse(f"modifier .{self._rest[0]} is not modelled here")

    def operands(self, *counts: int) -> tuple[Operand, ...]:
        """The operands, whose number must be one of ``counts``. Raises Unsupported."""
        if len(self.ins.operands) not in counts:
            raise self.refuse(f"{len(self.ins.operands)} operands, {' or '.join(map(str, counts))} expected")
        return self.ins.operands

    def end(self, *counts: int) -> tuple[Operand, ...]:
        """The operands, once no modifier is left and their number is one of ``counts``. Raises Unsupported."""
        self.done()
        return self.operands(*counts)

    def refuse(self, why: str) -> Unsupported:
        """The exception that names the opcode and says why."""
        return Unsupported(f"{self.ins.opcode}: {why}")
