"""Registers that are only pairs of 32-bit values: packed, unpacked (``mov.b64 %rd, {%r0, %r1}``), or added (``f32x2``).

The DSL packs what ``tcgen05.ld`` returns, and unpacks it in another block. A register that nothing else reads or writes
holds its items as a tuple, which costs no packing. Within a block, ``packs`` needs no register for it.
"""

from __future__ import annotations

from pytest_nvfp4.sim.lanes import Bits, merge
from pytest_nvfp4.sim.ptx.roles import results, sources
from pytest_nvfp4.sim.ptx.syntax import Instruction, Kernel, Register, Vector

Items = tuple[Bits, Bits]
BITS = 32
"""Bits of an item."""
_OPCODES = frozenset({f"mov.{kind}64" for kind in "bus"} | {"mov.f64"})
_PAIRWISE = frozenset({"add", "sub", "mul", "fma"})
"""Roots of arithmetic on ``f32x2``."""


def apart_slots(kernel: Kernel) -> frozenset[int]:
    """Return the slots of these registers, in a kernel that uses tensor memory; others form gangs (``ganged``)."""
    if not any(ins.root == "tcgen05" for ins in kernel.instructions):
        return frozenset()
    carried: set[int] = set()
    others: set[int] = set()
    copies: list[tuple[int, ...]] = []
    for ins in kernel.instructions:
        own = _carried(ins)
        carried.update(own)
        if len(own) > 1:
            copies.append(own)
        others.update(register.slot for register in (*sources(ins), *results(ins)) if register.slot not in own)
    carried -= others
    while lost := {slot for own in copies if not carried.issuperset(own) for slot in own} & carried:
        carried -= lost
    return frozenset(carried)


def _carried(ins: Instruction) -> tuple[int, ...]:
    """Return the slots of the registers that an instruction without a guard packs, unpacks, copies, or has as f32x2."""
    if ins.guard is not None:
        return ()
    if ins.parts[-1] == "f32x2" and ins.root in _PAIRWISE:
        slots = [each.slot for each in ins.operands if isinstance(each, Register)]
        return tuple(slots) if len(slots) == len(ins.operands) else ()
    if ins.opcode not in _OPCODES or len(ins.operands) != 2:
        return ()
    wide = [each.slot for each in ins.operands if isinstance(each, Register) and each.bits == 2 * BITS]
    pairs = [each for each in ins.operands if isinstance(each, Vector) and len(each.items) == 2]
    return tuple(wide) if wide and len(wide) + len(pairs) == 2 else ()


def merge_apart(mask: int, new: Items, old: Items) -> Items:
    """Return ``new`` in the lanes of ``mask`` and ``old`` in the others."""
    return merge(mask, new[0], old[0], BITS), merge(mask, new[1], old[1], BITS)
