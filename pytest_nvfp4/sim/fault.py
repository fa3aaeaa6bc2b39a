"""What a simulated kernel did wrong, and the exception that says so from inside a hardware unit."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.sim.ptx.syntax import Location

__all__ = ["Fault", "Finding", "Unsupported", "Where"]


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a finding: CTA coordinates, warp of the CTA, active lanes, instruction."""

    kernel: str
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: tuple[int, ...] = ()
    at: int | None = None
    """Index of the instruction in its kernel."""
    ptx_line: int | None = None
    text: str = ""
    """The instruction as the PTX has it."""
    source: Location | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. ``kind`` is a stable lower-case word pair (``out-of-bounds``, ``tmem``, ``deadlock`` ...)."""

    kind: str
    message: str
    hint: str = ""
    where: Where | None = None
    notes: tuple[str, ...] = ()


class Fault(Exception):
    """Raised by a unit at the instruction that did it; whoever runs the warp adds the place.

    Args:
        kind: See ``Finding``.
        message: What was found, with values and addresses, and why it is wrong.
        hint: What to look at or do.
    """

    def __init__(self, kind: str, message: str, *, hint: str = "", notes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.notes = notes
        self.where: Where | None = None

    def finding(self) -> Finding:
        """The same, as a value."""
        return Finding(self.kind, self.message, self.hint, self.where, self.notes)


class Unsupported(Fault):
    """An opcode, modifier, operand or field that is not modelled. Nothing is ever guessed."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("unsupported", message, hint=hint)
