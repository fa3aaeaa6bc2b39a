"""Extended-precision integer arithmetic (PTX ISA, "Extended-Precision Integer Arithmetic Instructions").

``add.cc``, ``sub.cc`` (a borrow) and ``mad.cc`` write the carry to the condition code register of each thread; it lives
until the next ``.cc`` instruction, across branches too. Reading it before it was written is a fault.

Evidence: PTX ISA; tested against Python's integers over chains of words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.alu.forms import BITS, MASKS, atoms, settle
from pytest_nvfp4.sim.alu.multiply import high
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp

FORMS = (
    "add|addc|sub|subc .cc.(u32|s32|u64|s64)",
    "addc|subc .(u32|s32|u64|s64)",
    "mad|madc .(lo|hi).cc.(u32|s32|u64|s64)",
    "madc .(lo|hi).(u32|s32|u64|s64)",
)


class Carry:
    """The condition code of a warp's threads: ``value`` in the lanes of ``known``."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.value: lanes.Predicate = False
        self.known = 0

    def take(self, mask: int) -> Any:
        """Return the carry as numbers. Raises Fault if an active lane's was never written."""
        if mask & ~self.known:
            raise Fault(
                "uninitialised",
                f"lane {lanes.first(mask & ~self.known)} uses the carry flag before any instruction wrote it",
                hint="an addc, subc or madc must follow an instruction with .cc",
            )
        value: Any = self.value
        return int(value) if value.__class__ is bool else value.astype(np.uint64)

    def put(self, mask: int, value: lanes.Predicate) -> None:
        """Write the carry of the active lanes."""
        self.value = lanes.merge_predicate(mask, value, self.value)
        if isinstance(self.value, np.ndarray) and (self.value == self.value[0]).all():
            self.value = bool(self.value[0])
        self.known |= mask


def chain(w: Warp, mask: int, a: Any, b: Any, bits: int, subtracts: bool, takes: bool, puts: bool) -> Any:
    """Compute a + b + carry, or a - (b + borrow), of ``bits``; write the carry out to the warp's flag if ``puts``."""
    flag = w.unit(Carry)
    carry: Any = flag.take(mask) if takes else 0
    full = MASKS[bits]
    if a.__class__ is int and b.__class__ is int and carry.__class__ is int:
        total = a - b - carry if subtracts else a + b + carry
        if puts:
            flag.put(mask, total < 0 if subtracts else total > full)
        return total & full
    x, y = lanes.spread(a, bits), lanes.spread(b, bits)
    carried = carry if carry.__class__ is int else carry.astype(x.dtype)
    first = x - y if subtracts else x + y
    result = first - carried if subtracts else first + carried
    if puts:
        # Unsigned overflow of each of the two steps, of which at most one can wrap.
        over = (x < y) | (first < result) if subtracts else (first < x) | (result < first)
        flag.put(mask, over)
    return result


def _assign(e: Emitter, dst: Any, a: str, b: str, bits: int, *, subtracts: bool, takes: bool, puts: bool) -> None:
    arguments = (str(bits), str(subtracts), str(takes), str(puts))
    e.assign(dst, e.call(chain, "w", e.mask, a, b, *arguments), bits)


def _sum(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    takes = ins.root.endswith("c")
    puts = read.has("cc")
    bits = BITS[read.one("u32", "s32", "u64", "s64")]
    dst, *sources = read.end(3)
    a, b = atoms(e, bits, *sources)
    _assign(e, dst, a, b, bits, subtracts=ins.root.startswith("sub"), takes=takes, puts=puts)


def _multiply(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    takes = ins.root == "madc"
    part = read.one("lo", "hi")
    puts = read.has("cc")
    kind = read.one("u32", "s32", "u64", "s64")
    dst, *sources = read.end(4)
    bits = BITS[kind]
    a, b, c = atoms(e, bits, *sources)
    product = settle(e, high(e, kind, a, b) if part == "hi" else f"({a} * {b}) & {MASKS[bits]}")
    _assign(e, dst, product, c, bits, subtracts=False, takes=takes, puts=puts)


LOWERINGS: Mapping[str, Lowering] = {
    "add.cc": _sum,
    "addc": _sum,
    "sub.cc": _sum,
    "subc": _sum,
    "mad.lo.cc": _multiply,
    "mad.hi.cc": _multiply,
    "madc": _multiply,
}
