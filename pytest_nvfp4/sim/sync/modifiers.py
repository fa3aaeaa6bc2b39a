"""Takes an opcode apart, modifier by modifier, in the order of the ISA's grammar."""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand

__all__ = ["Modifiers"]

SHARED = ("shared", "shared::cta", "shared::cluster")


class Modifiers:
    """The parts of an opcode after the first ``skip``; whatever is not taken is unsupported."""

    def __init__(self, instruction: Instruction, skip: int) -> None:
        self.instruction = instruction
        self.rest = list(instruction.parts[skip:])

    def one(self, *choices: str) -> str | None:
        """The next part if it is one of the choices, else None."""
        if self.rest and self.rest[0] in choices:
            return self.rest.pop(0)
        return None

    def need(self, *choices: str) -> str:
        """The next part, which must be one of the choices."""
        found = self.one(*choices)
        if found is None:
            has = f".{self.rest[0]}" if self.rest else "nothing"
            raise Unsupported(f"{self.instruction.opcode}: {has} where .{' or .'.join(choices)} is expected")
        return found

    def done(self) -> None:
        """Raises Unsupported if parts are left."""
        if self.rest:
            raise Unsupported(f"{self.instruction.opcode}: .{self.rest[0]} is not modelled here")

    def operands(self, low: int, high: int | None = None) -> tuple[Operand, ...]:
        """The operands, of which there must be ``low`` to ``high``."""
        operands = self.instruction.operands
        if not low <= len(operands) <= (low if high is None else high):
            raise Unsupported(f"{self.instruction.opcode} with {len(operands)} operands")
        return operands
