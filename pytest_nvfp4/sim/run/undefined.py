"""Values that are not defined: a finding once a lane uses such a value, none if it never does.

A value is not defined if nothing has written its bytes or its register, or a copy to the bytes is in flight. Some loads
have no use: warps that never use the address of TMEM load it, and compilers move loads above the branch that guards
their use. A store to shared or local memory is no use either: the bytes that it writes are not defined then, and a load
of them is such a load again. It is a use of what a reader has loaded too early: from a copy in flight, and, unless
threads load it again before a copy may, from TMEM or a matrix. There, the first use tells which writer is late.
"""

from __future__ import annotations

from functools import partial

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.following import dependents_of, follow
from pytest_nvfp4.sim.run.warp import Warp


def loaded_undefined(
    w: Warp,
    at: int,
    lanes: int,
    fault: Fault,
    *,
    registers: frozenset[int] | None = None,
    shows: bool = False,
    ends: bool = False,
) -> None:
    """Record that lanes have loaded bytes that are not there, and report it now if a use may follow unwatched.

    Args:
        registers: Numbers, in the first operand of the instruction, of those that depend on the bytes. None: all.
        shows: The lanes hold NaN, so that results show a use that is not watched, and no doubtful one is reported.
        ends: A use is a fault, which ends the launch, as it does for a copy in flight: the writer is late, and what it
            writes behind the use is of no interest. A doubtful use, behind a guard that is not known yet, is none.

    Raises:
        Fault: ``fault``, here or at a use, if that ends the launch.
    """
    launch = w.cta.launch
    program = launch.program
    uses = program.uses(at, registers, passing="none" if fault.kind == "in-flight" else "reloaded" if ends else "all")
    if not uses.matters:
        return
    fault.where = where = fault.where or launch.where(w, at, mask=lanes)

    def report() -> None:
        if ends or fault.kind == "in-flight":
            raise fault
        launch.report(fault.kind, fault.message, hint=fault.hint, where=where)

    dependents = dependents_of(w, at)
    for slot in uses.loaded:
        dependents[slot] = dependents.get(slot, 0) | lanes
    used, rest = program.frames.behind(uses, dependents, certain=ends or shows)
    if used:
        report()
        return
    follow(w, at, dependents, uses, report, fault=fault, rest=rest)


def follow_unset(w: Warp) -> None:
    """Follow the values of the registers that a warp may use before it writes them, from its start on."""
    launch = w.cta.launch
    for slot, at, uses in launch.program.unset:
        instruction = launch.kernel.instructions[at]
        fault = Fault(
            "uninitialised",
            f"{instruction.opcode}: register {launch.kernel.registers[slot].name} was never written",
            hint="<write the variable on each path before its first use>",
        )
        fault.where = launch.where(w, at, mask=w.live)
        report = partial(launch.report, fault.kind, fault.message, hint=fault.hint, where=fault.where)
        follow(w, at, {slot: w.live}, uses, report, reason=slot, fault=fault)
