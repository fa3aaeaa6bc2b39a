"""What the opcodes of ``atom``, ``red`` and ``red.async`` say, and their code; ``atomics`` runs them.

Source: PTX ISA, "atom", "red", "red.async".
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import Access
from pytest_nvfp4.sim.memory.atomics import Operation, atomic, reduce_async
from pytest_nvfp4.sim.memory.forms import EVICTIONS, SCOPES
from pytest_nvfp4.sim.ptx.syntax import Instruction, Operand, Vector

__all__ = ["LOWERINGS"]

_SPACES = {"global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "cluster"}
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
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_WIDTHS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}


class AtomicForm:
    """The modifiers of ``atom`` and ``red``."""

    def __init__(self, ins: Instruction) -> None:
        self.opcode = ins.opcode
        *modifiers, typed = ins.parts[1:] or ("",)
        self.name = ""
        self.space = "generic"
        self.count = 1
        self.hinted = False
        seen = self._take(modifiers)
        if not self.name:
            raise Unsupported(f"{self.opcode}: no operation is named")
        self._check_type(typed, noftz="noftz" in seen)
        halves = typed in _HALVES
        self.bits = _WIDTHS.get(typed) or int(typed[1:])
        if self.count > 1:
            floating = halves or (typed == "f32" and self.name == "add")
            if not floating or self.bits * self.count > 128 or self.space not in ("global", "generic"):
                raise Unsupported(f"{self.opcode}: a vector of {self.count} .{typed}")
        if ins.root == "red" and self.name in ("exch", "cas"):
            raise Unsupported(f"{self.opcode}: a reduction without a result")
        self.kind = typed.removesuffix("x2") if halves else typed if typed[0] == "f" else ""
        self.name = _signed(self.name, typed)

    def _take(self, modifiers: list[str]) -> set[str]:
        """Note what the modifiers say; which kinds of them there are."""
        seen: set[str] = set()
        for part in modifiers:
            if part in ("relaxed", "acquire", "release", "acq_rel"):
                slot = "order"
            elif part in SCOPES:
                slot = "scope"
            elif part in _SPACES:
                slot, self.space = "space", _SPACES[part]
            elif part in _TYPES:
                slot, self.name = "operation", part
            elif part == "noftz":
                slot = part
            elif part in _VECTORS:
                slot, self.count = "vector", _VECTORS[part]
            elif part == "L2::cache_hint":
                slot, self.hinted = part, True
            elif part in EVICTIONS:
                slot = part[:2] + " eviction"
            else:
                raise Unsupported(f"{self.opcode}: .{part} is not modelled")
            if slot in seen:
                raise Unsupported(f"{self.opcode}: a second {slot} (.{part})")
            seen.add(slot)
        return seen

    def _check_type(self, typed: str, *, noftz: bool) -> None:
        allowed = _TYPES[self.name] | (_HALVES if self.count > 1 and self.name in ("min", "max") else set())
        if typed not in allowed:
            raise Unsupported(f"{self.opcode}: .{self.name} of .{typed}")
        if (typed in _HALVES) != noftz:
            raise Unsupported(f"{self.opcode}: .noftz goes with half types, and only with them")

    def operation(self, *, returns: bool) -> Operation:
        """Of the modifiers."""
        access = Access(self.opcode, self.space, self.bits, self.count)
        return Operation(access, self.name, self.kind, returns)


def _signed(name: str, typed: str) -> str:
    """The name of an operation by which its comparison knows its operands for signed ones."""
    return "s" + name if typed[0] == "s" and name in ("min", "max") else name


def _items(operand: Operand) -> int:
    return len(operand.items) if isinstance(operand, Vector) else 1


def _atom(ins: Instruction, e: Emitter) -> None:
    form = AtomicForm(ins)
    returns = ins.root == "atom"
    wanted = 2 + returns + (form.name == "cas") + form.hinted
    if len(ins.operands) != wanted:
        raise Unsupported(f"{ins.opcode} with {len(ins.operands)} operands, expected {wanted}")
    rest = list(ins.operands)
    target = rest.pop(0) if returns else None
    address, b = rest.pop(0), rest.pop(0)
    c = rest.pop(0) if form.name == "cas" else None
    if form.hinted:
        e.value(rest.pop(0), 64)
    for operand in (target, b):
        if operand is not None and _items(operand) != form.count:
            raise Unsupported(f"{ins.opcode}: {_items(operand)} values, expected {form.count}")
    op = e.constant(form.operation(returns=returns), "operation")
    third = e.tuple(c, form.bits) if c is not None else "()"
    text = e.call(atomic, "w", e.mask, e.address(address), e.tuple(b, form.bits), third, op, str(e.at))
    if target is None:
        e.line(text)
    elif isinstance(target, Vector):
        e.assign_all(target, text, form.bits)
    else:
        e.assign(target, text, form.bits)


def _red_async(ins: Instruction, e: Emitter) -> None:
    parts = [part for part in ins.parts[2:] if part not in ("relaxed", "cluster")]
    if parts[:2] != ["shared::cluster", "mbarrier::complete_tx::bytes"] or len(parts) != 4 or len(ins.operands) != 3:
        raise Unsupported(f"{ins.opcode}: only .shared::cluster.mbarrier::complete_tx::bytes.op.type is modelled")
    name, typed = parts[2:]
    allowed = {
        "inc": {"u32"},
        "dec": {"u32"},
        "min": {"u32", "s32"},
        "max": {"u32", "s32"},
        "add": {"u32", "s32", "u64"},
        "and": {"b32"},
        "or": {"b32"},
        "xor": {"b32"},
    }
    if typed not in allowed.get(name, ()):
        raise Unsupported(f"{ins.opcode}: .{name} of .{typed}")
    bits = int(typed[1:])
    op = e.constant(
        Operation(Access(ins.opcode, "cluster", bits), _signed(name, typed), "", returns=False), "operation"
    )
    address, b, barrier = ins.operands
    values = e.tuple(b, bits)
    e.line(e.call(reduce_async, "w", e.mask, e.address(address), values, e.address(barrier), op, str(e.at)))


LOWERINGS: Mapping[str, Lowering] = {"atom": _atom, "red": _atom, "red.async": _red_async}
