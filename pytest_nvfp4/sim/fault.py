"""Exceptions that hardware units raise at the instruction that is wrong."""

from __future__ import annotations

from pytest_nvfp4.finding import Finding, Where


class Fault(Exception):
    """Error of a simulated kernel at its current instruction. The scheduler of the warp adds the place.

    Args:
        kind: Stable identifier, see ``Finding``.
        message: What is wrong and why, with values and addresses.
        hint: What to change or inspect.
        notes: Further facts, one a line.
    """

    def __init__(self, kind: str, message: str, *, hint: str = "", notes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.notes = notes
        self.where: Where | None = None
        self._origin: Fault | None = None  # a reference to itself would keep the frames of its traceback

    def stored(self, what: str, place: str) -> Fault:
        """Return the fault of a load of this undefined value from where it was stored; the first cause stays named."""
        first = self._origin or self
        fault = Fault(first.kind, f"{first.message}; {what} loads the value from {place}, where it was stored")
        fault.hint, fault.where, fault._origin = first.hint, first.where, first
        return fault

    def finding(self) -> Finding:
        """Return the fault as a finding."""
        return Finding(self.kind, self.message, hint=self.hint, where=self.where, notes=self.notes)


class Unsupported(Fault):
    """An opcode, modifier, operand or field that is not modelled: the simulator stops rather than guesses."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("unsupported", message, hint=hint)


NEEDS_DATA = "needs-data"
"""Kind of the fault of a simulation without data."""


def needs_data(what: str) -> Fault:
    """Return the fault of a simulation without data where what happens next may depend on data."""
    return Fault(NEEDS_DATA, f"{what}: it cannot be followed without data")
