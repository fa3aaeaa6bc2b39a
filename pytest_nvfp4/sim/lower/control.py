"""Control flow: branches, exits, and where diverged lanes must meet (PTX ISA, "Control Flow Instructions")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, Predicate, guard_mask, lanes, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Instruction, Label, Vector
from pytest_nvfp4.sim.run.warp import Warp

SPLIT = -(1 << 40)
"""Return code of a block: its group has split."""
LEFT = -(1 << 41)
"""Return code of a block: some or all lanes of its group have exited."""

TERMINATORS = frozenset({"bra", "brx", "ret", "exit"})
_CONVERGENT = frozenset({"sync", "aligned"})


def meets(instruction: Instruction) -> bool:
    """Return whether diverged lanes come together at an instruction before it runs: ``.sync`` and ``.aligned`` ones.

    The named barriers see to it themselves, because an unaligned one takes lanes as they come.
    """
    named = instruction.root in ("bar", "barrier") and instruction.parts[1] not in ("warp", "cluster")
    return not named and not _CONVERGENT.isdisjoint(instruction.parts)


def terminate(instruction: Instruction, emitter: Emitter) -> None:
    """Write the end of a block: the return of the next place."""
    after = instruction.index + 1
    if instruction.root == "bra":
        target = instruction.operands[0]
        assert isinstance(target, Label)
        guard = instruction.guard
        if guard is None:
            emitter.line(f"return {target.index}")
            return
        name = emitter.predicate(guard.register)
        taken, other = (after, target.index) if guard.negated else (target.index, after)
        emitter.line(f"if {name} is True: return {taken}")
        emitter.line(f"if {name} is False: return {other}")
        strict = "True" if instruction.has("uni") else "False"
        emitter.line(f"return {emitter.call(branch, 'w', name, 'm', str(taken), str(other), strict)}")
        return
    if instruction.root == "brx":
        table = instruction.operands[1]
        if not isinstance(table, Vector):
            raise Unsupported(f"{instruction.opcode}: the list of targets is missing")
        places = tuple(item.index for item in table.items if isinstance(item, Label))
        index = emitter.value(instruction.operands[0], 32)
        targets = emitter.constant(places)
        emitter.line(f"return {emitter.call(jump, 'w', index, emitter.mask, targets, 'm', str(after))}")
    else:
        emitter.line(f"return {emitter.call(leave, 'w', emitter.mask, 'm', str(after))}")
    if instruction.guard is not None:
        emitter.outdent()
        emitter.line(f"return {after}")


def branch(w: Warp, predicate: NDArray[np.bool_], mask: int, taken: int, other: int, uniformly: bool) -> int:
    """Split or move the group: return where it goes on, or SPLIT after it has been split."""
    there = guard_mask(predicate, mask)
    if there == mask:
        return taken
    if not there:
        return other
    if uniformly:
        raise Fault("divergence", f"bra.uni is taken by lanes {there:#010x} of {mask:#010x} only")
    w.split([(taken, there), (other, mask & ~there)])
    return SPLIT


def jump(w: Warp, index: Bits, mask: int, places: tuple[int, ...], group: int, after: int) -> int:
    """Return the target of a brx.idx; lanes whose guard is false go on after it."""
    groups: dict[int, int] = {after: group & ~mask} if mask != group else {}
    for lane in lanes(mask):
        number = index if isinstance(index, int) else int(index[lane])
        if number >= len(places):
            raise Fault("control", f"brx.idx: index {number} of {len(places)} targets")
        groups[places[number]] = groups.get(places[number], 0) | 1 << lane
    if len(groups) == 1:
        return next(iter(groups))
    w.split(list(groups.items()))
    return SPLIT


def leave(w: Warp, mask: int, group: int, after: int) -> int:
    """Retire lanes; the rest of the group goes on after the instruction."""
    w.live &= ~mask
    w.cta.call_units("lanes_exited", w)
    if mask == group:
        w.split([])
    else:
        w.split([(after, group & ~mask)])
    return LEFT


def converged(w: Warp, mask: int, members: Predicate | Bits) -> bool:
    """Return whether all living lanes of a member mask are in the group; if not, the group waits for them here."""
    named = uniform(members, mask)
    expected = w.live if named is None else named & w.live
    if expected & ~mask:
        w.wait_for(w.meeting)
        return False
    return True
