"""Lowerings of ``atom``, ``red`` and ``red.async``; ``atomics`` executes them.

Source: PTX ISA, "atom", "red", "red.async".
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.alu.forms import BITS
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import Access
from pytest_nvfp4.sim.memory.atomics import Operation, atomic, reduce_async
from pytest_nvfp4.sim.memory.forms import EVICTIONS, SCOPES, VECTORS
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Vector
from pytest_nvfp4.sim.sync.addresses import shared_operand

_SPACES = {"": "generic", "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "cluster"}
_TYPES = {
    "and": {"b32", "b64"},
    "or": {"b32", "b64"},
    "xor": {"b32", "b64"},
    "exch": {"b32", "b64", "b128"},
    "cas": {"b16", "b32", "b64", "b128"},
    "add": {"u32", "s32", "u64", "s64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"},
    "inc": {"u32"},
    "dec": {"u32"},
    "min": {"u32", "s32", "u64", "s64"},
    "max": {"u32", "s32", "u64", "s64"},
}
_HALVES = frozenset({"f16", "f16x2", "bf16", "bf16x2"})


class AtomicForm:
    """The modifiers of ``atom`` and ``red``."""

    def __init__(self, ins: Instruction) -> None:
        read = OpcodeReader(ins, ordered=False)
        typed = read.last(*{kind for kinds in _TYPES.values() for kind in kinds})
        read.maybe("relaxed", "acquire", "release", "acq_rel")
        read.maybe(*SCOPES)
        self.opcode = ins.opcode
        self.space = _SPACES[read.maybe(*_SPACES)]
        name = read.one(*_TYPES)
        noftz = read.has("noftz")
        self.count = VECTORS[read.maybe(*VECTORS)]
        self.hinted = read.has("L2::cache_hint")
        for ignored in EVICTIONS:
            read.maybe(*ignored)
        read.done()
        halves = typed in _HALVES
        if typed not in _TYPES[name] | (_HALVES if self.count > 1 and name in ("min", "max") else set()):
            raise read.refuse(f".{name} of .{typed}")
        if halves != noftz:
            raise read.refuse(".noftz is required with half types and allowed with no others")
        self.bits = BITS[typed]
        if self.count > 1:
            floating = halves or (typed == "f32" and name == "add")
            if not floating or self.bits * self.count > 128 or self.space not in ("global", "generic"):
                raise read.refuse(f"a vector of {self.count} .{typed}")
        if ins.root == "red" and name in ("exch", "cas"):
            raise read.refuse("a reduction without a result")
        self.kind = typed.removesuffix("x2") if halves else typed if typed[0] == "f" else ""
        self.name = _signed(name, typed)
        self.returns = ins.root == "atom"
        self.operands = read.operands(2 + self.returns + (name == "cas") + self.hinted)
        for operand in self.operands[0], self.operands[1 + self.returns]:
            if self.returns or operand is not self.operands[0]:
                read.items(operand, self.count)

    def operation(self) -> Operation:
        """Return the operation for the inner loop."""
        return Operation(Access(self.opcode, self.space, self.bits, self.count), self.name, self.kind, self.returns)


def _signed(name: str, typed: str) -> str:
    """Return the name of an operation, with ``s`` before a comparison of signed operands."""
    return "s" + name if typed[0] == "s" and name in ("min", "max") else name


def _atom(ins: Instruction, e: Emitter) -> None:
    form = AtomicForm(ins)
    rest = list(form.operands)
    target = rest.pop(0) if form.returns else None
    address, b = rest.pop(0), rest.pop(0)
    c = rest.pop(0) if form.name == "cas" else None
    if form.hinted:
        e.value(rest.pop(0), 64)
    op = e.constant(form.operation(), "operation")
    third = e.tuple(c, form.bits) if c is not None else "()"
    where = shared_operand(e, address) if form.space in ("shared", "cluster") else e.address(address)
    text = e.call(atomic, "w", e.mask, where, e.tuple(b, form.bits), third, op, str(e.at))
    if target is None:
        e.line(text)
    elif isinstance(target, Vector):
        e.assign_all(target, text, form.bits)
    else:
        e.assign(target, text, form.bits)


_ASYNC_TYPES = {
    "inc": ("u32",),
    "dec": ("u32",),
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "add": ("u32", "s32", "u64"),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
}


def _red_async(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 2)
    if read.has("relaxed"):
        read.one("cluster")
    read.each("shared::cluster", "mbarrier::complete_tx::bytes")
    name = read.one(*_ASYNC_TYPES)
    typed = read.one(*_ASYNC_TYPES[name])
    address, b, barrier = read.end(3)
    bits = BITS[typed]
    access = Access(ins.opcode, "cluster", bits)
    op = e.constant(Operation(access, _signed(name, typed), "", returns=False), "operation")
    values = e.tuple(b, bits)
    where, signalled = shared_operand(e, address), shared_operand(e, barrier)
    e.line(e.call(reduce_async, "w", e.mask, where, values, signalled, op, str(e.at)))


LOWERINGS: Mapping[str, Lowering] = {"atom": _atom, "red": _atom, "red.async": _red_async}
