"""The modifiers of an opcode, taken one by one: what is left over is unsupported by name."""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Operand

__all__ = ["SPACES", "Parts", "immediate"]

SPACES = ("global", "shared::cta", "shared::cluster")


class Parts:
    """The parts of an opcode after its root; the order of modifiers differs between compilers and is not significant.

    Args:
        root: The parts that name the instruction, which are dropped.
    """

    def __init__(self, instruction: Instruction, *root: str) -> None:
        self.opcode = instruction.opcode
        if instruction.parts[: len(root)] != root:
            raise Unsupported(f"{self.opcode}: it does not start with {'.'.join(root)}")
        self.left = list(instruction.parts[len(root) :])

    def flag(self, name: str) -> bool:
        """Take a modifier; whether it was there."""
        if name not in self.left:
            return False
        self.left.remove(name)
        return True

    def require(self, name: str) -> None:
        """Take a modifier that must be there."""
        if not self.flag(name):
            raise Unsupported(f"{self.opcode}: .{name} is missing")

    def choice(self, *names: str, default: str | None = None) -> str:
        """Take the one of several modifiers that is there."""
        found = [name for name in names if name in self.left]
        if len(found) > 1:
            raise Unsupported(f"{self.opcode}: .{found[0]} and .{found[1]} together")
        if found:
            self.left.remove(found[0])
            return found[0]
        if default is None:
            raise Unsupported(f"{self.opcode}: none of .{', .'.join(names)}")
        return default

    def direction(self) -> tuple[str, str]:
        """Take the destination's and the source's state space, which stand in this order."""
        found = [part for part in self.left if part in SPACES]
        if len(found) != 2:
            raise Unsupported(f"{self.opcode}: state spaces {found}, and a destination and a source are needed")
        for space in found:
            self.left.remove(space)
        return found[0], found[1]

    def finish(self) -> None:
        """Raise Unsupported if a modifier is left."""
        if self.left:
            raise Unsupported(f"{self.opcode}: modifier .{self.left[0]}")

    def operands(self, instruction: Instruction, count: int) -> tuple[Operand, ...]:
        """The operands, of which there must be ``count``."""
        if len(instruction.operands) != count:
            raise Unsupported(f"{self.opcode}: {len(instruction.operands)} operands, and {count} are expected")
        return instruction.operands


def immediate(operand: Operand, opcode: str, name: str) -> int:
    """An operand that must be a literal integer."""
    if not isinstance(operand, Immediate) or operand.bits:
        raise Unsupported(f"{opcode}: {name} must be an immediate integer, found {operand!r}")
    return operand.value
