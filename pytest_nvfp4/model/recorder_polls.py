"""Polls in a kernel's code: loops that load a flag and do nothing else until its value satisfies a comparison.

Such a loop leaves no trace but the time at which it ends: its load has one comparison, which decides the loop's only
branch, and no register that the loop writes is read behind it. What follows then does not depend on when other CTAs
write the flag. Any other load that other CTAs' writes are ordered with is refused (``recorder_code``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.model.flags import COMPARISONS
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.ptx.roles import results
from pytest_nvfp4.sim.ptx.syntax import Address, Immediate, Instruction, Label, Register

_ONLY_REGISTERS = frozenset({"add", "and", "cvt", "mov", "mul", "nanosleep", "or", "selp", "setp", "shl", "sub", "xor"})
"""Instructions that a loop may contain besides: they write registers, or pass time."""
_LONGEST = 64
"""Most instructions of such a loop."""
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_INVERSE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class Poll:
    """A loop that polls.

    Attributes:
        kind: The comparison with which it ends (``flags.POLL_KINDS``); ``operand`` is what it compares with.
        size: Bytes of the flag.
        loop: Its instructions.
    """

    kind: str
    operand: Register | Immediate
    size: int
    loop: frozenset[int] = frozenset()


def polls_of(program: Program, loads: Sequence[Instruction]) -> dict[int, Poll]:
    """Return those of the loads that poll, by instruction."""
    return {ins.index: poll for ins in loads if (poll := _poll(program, ins)) is not None}


def _poll(program: Program, load: Instruction) -> Poll | None:
    code = program.kernel.instructions
    address = load.operands[-1]
    loaded = results(load)
    sizes = {"b32": 4, "u32": 4, "s32": 4, "b64": 8, "u64": 8, "s64": 8}
    size = sizes.get(load.parts[-1])
    if load.guard or len(loaded) != 1 or size is None or loaded[0].bits != 8 * size or not isinstance(address, Address):
        return None
    tail = _until_branch(code, load.index + 1)
    if tail is None:
        return None
    branch = code[tail[-1]]
    target = branch.operands[0]
    if branch.guard is None or not isinstance(target, Label):
        return None
    again = [_back(code, place, load.index) for place in (target.index, branch.index + 1)]
    if (again[0] is None) == (again[1] is None):
        return None
    taken_ends = again[0] is None
    back = again[1] if taken_ends else again[0]
    assert back is not None
    looped = [load, *(code[at] for at in (*tail, *back))]
    out = target.index if taken_ends else branch.index + 1
    inside = {register.slot for ins in looped for register in results(ins)}
    if inside & program.liveness.live_before(out):
        return None
    if isinstance(address.base, Register) and address.base.slot in inside:
        return None
    compares = [ins for ins in looped if any(register.slot == branch.guard.register.slot for register in results(ins))]
    if len(compares) != 1 or compares[0].index not in tail:
        return None
    found = _ending(compares[0], loaded[0], inside, ends_if=taken_ends != branch.guard.negated, size=size)
    return found and replace(found, loop=frozenset(ins.index for ins in looped))


def _ending(compare: Instruction, loaded: Register, inside: set[int], *, ends_if: bool, size: int) -> Poll | None:
    """Return the poll that ends if a comparison is true, or if it is not."""
    if compare.root != "setp" or len(compare.parts) != 3 or compare.guard or len(compare.operands) != 3:
        return None
    _, one, other = compare.operands
    name, form = _UNSIGNED.get(compare.parts[1], compare.parts[1]), compare.parts[2]
    if name not in COMPARISONS or form[:1] not in "sub" or form[1:] != str(8 * size):
        return None
    if isinstance(other, Register) and other.slot == loaded.slot:
        one, other, name = other, one, _SWAPPED[name]
    if not isinstance(one, Register) or one.slot != loaded.slot or not isinstance(other, Register | Immediate):
        return None
    if isinstance(other, Register) and other.slot in inside:
        return None
    signed = form[0] == "s"
    return Poll(f"{name if ends_if else _INVERSE[name]}.{'s' if signed else 'u'}{8 * size}", other, size)


def _until_branch(code: Sequence[Instruction], start: int) -> list[int] | None:
    """Return the instructions from a place to a branch, if they only write registers."""
    found = []
    for at in range(start, min(start + _LONGEST, len(code))):
        found.append(at)
        if code[at].root == "bra":
            return found
        if code[at].root not in _ONLY_REGISTERS or code[at].guard:
            return None
    return None


def _back(code: Sequence[Instruction], start: int, load: int) -> list[int] | None:
    """Return the instructions from a place to the load, if they only write registers."""
    found: list[int] = []
    at = start
    while len(found) < _LONGEST and at < len(code):
        if at == load:
            return found
        ins = code[at]
        found.append(at)
        if ins.guard:
            return None
        if ins.root == "bra":
            target = ins.operands[0]
            if not isinstance(target, Label):
                return None
            at = target.index
        elif ins.root in _ONLY_REGISTERS:
            at += 1
        else:
            return None
    return None
