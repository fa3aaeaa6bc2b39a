"""Loads of bytes that nothing has written: a finding once a lane uses such a value, none if it never does.

Some loads have no use: warps that never use the address of TMEM load it, and compilers move loads above the branch that
guards their use. What may use the value of a load is known from the code
(``sim.ptx.uses``); when a load of unwritten bytes has occurred, these instructions are watched (``Program.watch``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.run.warp import Warp


@dataclass(slots=True)
class _Undefined:
    fault: Fault
    where: Where
    lanes: int
    uses: Uses


class UndefinedValues:
    """Undefined values that a warp may have in registers, by the instruction that loaded them."""

    def __init__(self, warp: Warp) -> None:
        del warp
        self.values: dict[int, _Undefined] = {}


def loaded_undefined(w: Warp, at: int, lanes: int, fault: Fault, *, shows: bool = False) -> None:
    """Record that lanes have loaded bytes that were never written, and report it now if a use may follow unwatched.

    ``shows``: The lanes hold NaN, so that results show a use that is not watched, and no doubtful one is reported.
    """
    launch = w.cta.launch
    program = launch.program
    uses = program.uses(at)
    if not uses.all:
        return
    where = launch.where(w, at, mask=lanes)
    if not shows and program.uses_now(uses, lanes):
        launch.report(fault.kind, fault.message, hint=fault.hint, where=where)
        return
    program.watch(uses.all | {at})
    values = w.unit(UndefinedValues).values
    if (known := values.get(at)) is not None:
        known.lanes |= lanes
    else:
        values[at] = _Undefined(fault, where, lanes, uses)


def watched(w: Warp, mask: int, at: int) -> None:
    """Report what the lanes that execute a watched instruction use, and forget what they load anew."""
    unit = w.units.get(UndefinedValues)
    if unit is None:
        return
    for source, value in list(unit.values.items()):
        if source == at and not value.uses.carried:
            value.lanes &= ~mask
        elif mask & value.lanes and at in value.uses.all:
            fault = value.fault
            w.cta.launch.report(fault.kind, fault.message, hint=fault.hint, where=value.where)
            value.lanes = 0
        if not value.lanes:
            del unit.values[source]
