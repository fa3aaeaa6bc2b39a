"""Values that are followed from the instruction that loaded them to their first use.

What may use the value of a load is known from the code (``sim.ptx.uses``). From the time that a warp has loaded a value
that matters only if it is used, the instructions that touch a register which may depend on it are watched
(``Program.watch``). They keep the lanes of each register that depend on it, until an instruction uses one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, TypeAlias

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx import roles
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand, Register
from pytest_nvfp4.sim.ptx.uses import Uses, exchanged, multiplied, packs, passes_on, stored
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.collective import receivers
from pytest_nvfp4.sim.wgmma.mma_dependents import dependents_of_product

Dependents: TypeAlias = dict[int, int]
"""The mask of the lanes whose register depends on a value, by slot."""


class Execution(NamedTuple):
    """The lanes that execute an instruction, as far as they are known.

    Attributes:
        mask: Lanes that reach it.
        may: Those that its guard may let execute it.
        surely: Those that execute it in any case.
        true, false: For ``selp``, the lanes whose predicate may be true, or false.
    """

    mask: int
    may: int
    surely: int
    true: int
    false: int


class RestOfBlock(NamedTuple):
    """What is known at a load of the block that runs, if it is not compiled to watch what touches the value.

    Attributes:
        frame: The block.
        stores: The lanes, by element, of stores to shared memory that pass the value on, by instruction.
    """

    frame: FrameType
    stores: dict[int, Dependents]


@dataclass(slots=True)
class _Followed:
    used: Callable[[], None]
    dependents: Dependents
    uses: Uses
    fault: Fault | None
    rest: RestOfBlock | None


class FollowedValues:
    """Values that a warp may have in registers, by the instruction that loaded them and why they are followed."""

    def __init__(self, warp: Warp) -> None:
        self._launch = warp.cta.launch
        self.values: dict[tuple[int, object], _Followed] = {}

    def stored(self, at: int, mask: int) -> tuple[Dependents, Fault | None]:
        """Return what a store to shared memory passes on of values that are not defined, and why they are not.

        What it passes on are the lanes of ``mask``, by the number of the element.
        """
        lanes: Dependents = {}
        why = None
        for value in self.values.values():
            if value.fault is None or at not in value.uses.stores:
                continue
            if value.rest is not None and _runs(value.rest.frame):
                passed = value.rest.stores.get(at, {})
            else:
                passed = passed_on(self._launch.kernel.instructions[at], value.dependents)
            for element, of in passed.items():
                if of & mask:
                    lanes[element] = lanes.get(element, 0) | of & mask
                    why = why or value.fault
        return lanes, why


def _runs(frame: FrameType) -> bool:
    """Return whether a frame is one of the caller's callers."""
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is not None


def passed_on(store: Instruction, dependents: Dependents) -> Dependents:
    """Return the lanes of the elements of a store that depend on a value, by the number of the element."""
    return {element: dependents[slot] for element, slot in stored(store, dependents.keys()).items()}


def dependents_of(w: Warp, at: int) -> Dependents:
    """Return the registers of a warp that depend on what an instruction has loaded before."""
    unit = w.units.get(FollowedValues)
    value = None if unit is None else unit.values.get((at, None))
    return {} if value is None else dict(value.dependents)


def follow(
    w: Warp, at: int, dependents: Dependents, uses: Uses, used: Callable[[], None], *, reason: object = None,
    fault: Fault | None = None, rest: RestOfBlock | None = None,
) -> None:  # fmt: skip
    """Call ``used`` once, when a lane executes one of the uses of what an instruction has loaded.

    Args:
        dependents: The registers that depend on the value, now or, with ``rest``, when that block ends.
        reason: Values of one instruction and one reason are one, with the ``used`` that was given first.
        fault: Why the value is not defined, for stores of it to shared memory, which are no uses then.
        rest: See ``Frames.behind``.
    """
    w.cta.launch.program.watch(uses.touched)
    values = w.unit(FollowedValues).values
    if (earlier := values.get((at, reason))) is not None:
        used, uses = earlier.used, earlier.uses.joined(uses)
    values[at, reason] = _Followed(used, dependents, uses, fault, rest)


def watched(w: Warp, mask: int, at: int, executing: int, true: int = 0) -> None:
    """Follow what is loaded through an instruction that a warp is about to execute, and call ``used`` if that uses it.

    Args:
        mask: The lanes that reach it.
        executing: Those that its guard lets execute it.
        true: Those whose predicate is true, for ``selp``.
    """
    unit = w.units[FollowedValues]
    ins = w.cta.launch.kernel.instructions[at]
    lanes = Execution(mask, executing, executing, true, ~true)
    for source, value in list(unit.values.items()):
        if value.rest is not None:
            if value.rest.frame is sys._getframe(1):
                continue
            value.rest = None
        if at in value.uses.touched:
            used = depends(ins, value.dependents, value.uses, lanes)
            if used or not value.dependents:
                del unit.values[source]
            if used:
                value.used()
    if not unit.values:
        w.units.pop(FollowedValues, None)


def depends(ins: Instruction, dependents: Dependents, uses: Uses, lanes: Execution) -> bool:
    """Update the registers that depend on a value for an instruction, and return whether that uses the value."""
    if ins.index in uses.ends:
        for register in roles.results(ins):
            dependents.pop(register.slot, None)
        if packs(ins):
            return False
    read = list(roles.sources(ins))
    decided = 0
    if ins.guard is not None:
        read.remove(ins.guard.register)
        decided = dependents.get(ins.guard.register.slot, 0) & lanes.mask
    given = decided
    operands: Iterable[tuple[Operand, int]] = ((register, -1) for register in read)
    if ins.root == "selp":
        operands = zip(ins.operands[1:], (lanes.true, lanes.false, -1), strict=True)
    for operand, chosen in operands:
        if isinstance(operand, Register):
            given |= dependents.get(operand.slot, 0) & chosen & lanes.may
    written = {register.slot for register in roles.results(ins)}
    received = dict.fromkeys(written, given)
    if given and not passes_on(ins):
        if (slots := exchanged(ins, dependents.keys())) is not None:
            received = dict.fromkeys(slots, receivers(ins, given) & lanes.may)
        elif ins.index in uses.exchanges and multiplied(ins, dependents.keys()):
            received = dependents_of_product(ins, dependents)
        elif ins.index in uses.stores:
            received = {}
        else:
            return ins.index in uses.all
    replaced = lanes.surely if roles.known(ins) else 0
    for slot in written:
        left = dependents.pop(slot, 0) & ~replaced | received.get(slot, 0)
        if left:
            dependents[slot] = left
    return False
