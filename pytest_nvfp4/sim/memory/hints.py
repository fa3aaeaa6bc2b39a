"""Cache hints: ``prefetch``, ``prefetchu``, ``applypriority``, ``createpolicy`` and ``discard``.

All but ``discard`` change no byte. ``discard`` leaves 128 bytes of global memory undefined: they become poison, and
uninitialised where that is tracked (PTX ISA, "prefetch, prefetchu", "applypriority", "discard", "createpolicy").

A prefetch of an unmapped address is legal and does nothing. A cache policy is an opaque 64-bit value; here it is a
constant, because a kernel can only pass it on. The TMA unit implements ``prefetch.tensormap``. ``multimem`` needs
several devices and is reported as unsupported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "discard"]

_POLICY = 0x1000_0000_0000_0000
_LINE = 128
_PREFETCH = frozenset(
    {(space, level) for space in ("", "global", "local") for level in ("L1", "L2")}
    | {("global", "L2::evict_last"), ("global", "L2::evict_normal")}
)
_PRIORITIES = frozenset({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"})


def discard(w: Warp, mask: int, address: lanes.Bits, erase: bool, opcode: str) -> None:
    """Check the 128-byte line of each lane, and fill it with poison if ``erase``. Raises Fault."""
    memory = w.cta.launch.machine.memory
    for lane in lanes.lanes(mask):
        where = lanes.value_in(address, lane)
        if where % _LINE:
            raise Fault("misaligned", f"{opcode}: lane {lane}'s address {where:#x} is not a multiple of {_LINE}")
        region = memory.region(where, _LINE, write=erase, what=f"{opcode}, lane {lane}")
        if erase:
            offset = where - region.start
            region.data[offset : offset + _LINE] = 0xFF
            if region.initialised is not None:
                region.initialised[offset : offset + _LINE] = False
            w.cta.launch.machine.changes += 1


def _prefetch(ins: Instruction, e: Emitter) -> None:
    rest = ins.parts[1:]
    space, level = rest if len(rest) == 2 else ("", rest[0] if rest else "")
    if (space, level) not in _PREFETCH or len(rest) > 2 or len(ins.operands) != 1:
        raise Unsupported(f"{ins.opcode}: not a form of prefetch")
    e.line(e.address(ins.operands[0]))


def _prefetchu(ins: Instruction, e: Emitter) -> None:
    if ins.parts != ("prefetchu", "L1") or len(ins.operands) != 1:
        raise Unsupported(f"{ins.opcode}: only prefetchu.L1 exists")
    e.line(e.address(ins.operands[0]))


def _line(ins: Instruction, e: Emitter) -> None:
    rest = [part for part in ins.parts[1:] if part != "global"]
    levels = {"L2"} if ins.root == "discard" else {"L2::evict_normal"}
    if len(rest) != 1 or rest[0] not in levels or len(ins.operands) != 2:
        raise Unsupported(f"{ins.opcode}: not a form of {ins.root}")
    size = ins.operands[1]
    if not isinstance(size, Immediate) or size.value != _LINE:
        raise Unsupported(f"{ins.opcode}: the size must be 128")
    e.line(e.call(discard, "w", e.mask, e.address(ins.operands[0]), str(ins.root == "discard"), repr(ins.opcode)))


def _createpolicy(ins: Instruction, e: Emitter) -> None:
    parts = list(ins.parts[1:])
    kind = parts.pop(0) if parts else ""
    if parts[-1:] != ["b64"]:
        raise Unsupported(f"{ins.opcode}: a policy is .b64")
    parts.pop()
    operands = ins.operands
    if kind == "fractional":
        known = parts and set(parts) <= _PRIORITIES and len(parts) <= 2
        if not known or not 1 <= len(operands) <= 2:
            raise Unsupported(f"{ins.opcode}: not a form of createpolicy.fractional")
        for operand in operands[1:]:
            if not isinstance(operand, Immediate):  # a literal fraction (0f3F000000) has no width to check
                e.value(operand, 32)
    elif kind == "range":
        parts = [part for part in parts if part != "global"]
        if not parts or not set(parts) <= _PRIORITIES or len(parts) > 2 or len(operands) != 4:
            raise Unsupported(f"{ins.opcode}: not a form of createpolicy.range")
        e.address(operands[1])
        for operand in operands[2:]:
            e.value(operand, 32)
    elif kind == "cvt":
        if parts != ["L2"] or len(operands) != 2:
            raise Unsupported(f"{ins.opcode}: not a form of createpolicy.cvt")
        e.value(operands[1], 64)
    else:
        raise Unsupported(f"{ins.opcode}: .{kind} is not modelled")
    e.assign(operands[0], str(_POLICY), 64)


def _multimem(ins: Instruction, e: Emitter) -> None:
    raise Unsupported(
        f"{ins.opcode}: multimem addresses refer to memory of several devices, and the simulator has one",
        hint="run kernels with multimem on the hardware",
    )


LOWERINGS: Mapping[str, Lowering] = {
    "prefetch": _prefetch,
    "prefetchu": _prefetchu,
    "applypriority": _line,
    "discard": _line,
    "createpolicy": _createpolicy,
    "multimem": _multimem,
}
