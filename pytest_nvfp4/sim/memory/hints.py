"""Cache hints: ``prefetch``, ``prefetchu``, ``applypriority``, ``createpolicy`` and ``discard``.

All but ``discard`` change no byte. ``discard`` leaves 128 bytes of global memory undefined: they become poison, and
uninitialised where that is tracked (PTX ISA, "prefetch, prefetchu", "applypriority", "discard", "createpolicy").

A prefetch of an unmapped address is legal and does nothing. A cache policy is an opaque 64-bit value; here it is a
constant, because a kernel can only pass it on. The TMA unit implements ``prefetch.tensormap``. ``multimem`` needs
several devices and is reported as unsupported.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.warp import Warp

_POLICY = 0x1000_0000_0000_0000
_LINE = 128
_PRIORITIES = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")


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
    read = OpcodeReader(ins)
    if ins.root == "prefetchu":
        read.one("L1")
    else:
        space = read.maybe("global", "local")
        read.one("L1", "L2", *(("L2::evict_last", "L2::evict_normal") if space == "global" else ()))
    e.line(e.address(read.end(1)[0]))


def _line(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    read.has("global")
    read.one("L2" if ins.root == "discard" else "L2::evict_normal")
    address, size = read.end(2)
    if read.immediate(size, "the size") != _LINE:
        raise read.refuse(f"the size must be {_LINE}")
    e.line(e.call(discard, "w", e.mask, e.address(address), str(ins.root == "discard"), repr(ins.opcode)))


def _createpolicy(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one("fractional", "range", "cvt")
    if kind == "range":
        read.has("global")
    if kind == "cvt":
        read.one("L2")
    else:
        read.one(*_PRIORITIES)
        read.maybe(*_PRIORITIES)
    read.one("b64")
    policy, *sources = read.end(*{"fractional": (1, 2), "range": (4,), "cvt": (2,)}[kind])
    if kind == "range":
        e.address(sources.pop(0))
    for operand in sources:
        if kind != "fractional" or not isinstance(operand, Immediate):  # the literal 0f3F000000 has no width to check
            e.value(operand, 64 if kind == "cvt" else 32)
    e.assign(policy, str(_POLICY), 64)


def _multimem(ins: Instruction, e: Emitter) -> None:
    raise Unsupported(
        f"{ins.opcode}: multimem addresses refer to memory of several devices, and the simulator has one",
        hint="run kernels with multimem on the hardware",
    )


LOWERINGS: Mapping[str, Lowering] = {
    "prefetch": _prefetch,
    "prefetchu": _prefetch,
    "applypriority": _line,
    "discard": _line,
    "createpolicy": _createpolicy,
    "multimem": _multimem,
}
