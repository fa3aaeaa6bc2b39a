"""Loads: ``ld`` of every state space, ``ldu`` (PTX ISA, "ld", "ld.global.nc", "ldu").

An element narrower than its register is sign-extended for ``.s`` types and zero-extended otherwise (PTX ISA, "Operand
Size Exceeding Instruction-Type Size"). ``ld.param`` of a named kernel parameter reads the launch's parameter block.
Addresses of kernel parameters (``cvta.param``, a register) point into a read-only region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import Access, Values
from pytest_nvfp4.sim.memory.forms import AccessForm
from pytest_nvfp4.sim.memory.pattern import pattern_of
from pytest_nvfp4.sim.memory.read import READERS
from pytest_nvfp4.sim.memory.tally import Key, Tally
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Operand, Register, Symbol, Vector
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_operand


def load_parameter(w: Warp, offset: int, end: int) -> int:
    """Return bytes [offset, end) of the parameter block as an integer. Raises Fault past its end."""
    data = w.cta.launch.parameters[offset:end]
    if len(data) != end - offset:
        raise Fault(
            "out-of-bounds",
            f"ld.param: bytes [{offset}, {end}) of the parameters, which have {len(w.cta.launch.parameters)} bytes",
        )
    return int.from_bytes(data, "little")


def load_parameter_signed(w: Warp, offset: int, end: int, register: int) -> int:
    """Return bytes [offset, end) of the parameter block, sign-extended to the register's width."""
    value = load_parameter(w, offset, end)
    bits = 8 * (end - offset)
    return (value - (value >> (bits - 1) << bits)) & ((1 << register) - 1)


def load_uniform(w: Warp, mask: int, address: Bits, access: Access, at: int) -> Values:
    """Execute ``ldu``, a load of one address for the whole warp. Raises Fault if the lanes' addresses differ."""
    common = uniform(address, mask)
    if common is None:
        raise Fault("ldu", f"{access.opcode}: the lanes' addresses differ", hint="ldu needs one address per warp")
    return READERS[access.space](w, mask, common, access, at)


def read_partly(
    w: Warp, mask: int, address: Bits, access: Access, parts: Sequence[tuple[int, Access]], at: int
) -> tuple[Bits, ...]:
    """Load the elements of a vector whose registers are read; the others are 0.

    LLVM merges loads of neighbouring elements and also loads the gaps between them, into registers that it never uses.
    An unused element cannot affect a result, so unwritten bytes and races are checked for the used elements only. The
    cost is counted for the whole vector.

    Args:
        parts: Number of each used element, and the access to that element.

    Raises:
        Fault: as for the single loads, or if the whole vector is misaligned.
    """
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    size = access.size
    key: Key
    if isinstance(address, int):
        aligned, key = address % size == 0, (f"{access.space}.load", size)
    else:
        base, pattern = pattern_of(address, mask, size)
        low = base + pattern.low
        aligned = pattern.aligned and low % size == 0
        key = (f"{access.space}.load", pattern, low & (31 if access.space == "global" else 127))
    reader = READERS[access.space]
    if not aligned:
        reader(w, mask, address, access, at)  # raises the fault
    elements: list[Any] = [0] * access.count
    cta.units[Tally] = Tally(cta)  # the loads of single elements are not counted
    try:
        for number, part in parts:
            elements[number] = reader(w, mask, address + number * part.size, part, at)
    finally:
        cta.units[Tally] = tally
    tally[key] += 1
    return tuple(elements)


def _ld(ins: Instruction, e: Emitter) -> None:
    orders = ("weak", "volatile", "relaxed", "acquire")
    _lower(ins, e, AccessForm(ins, orders=orders, caches=("ca", "cg", "cs", "lu", "cv"), nc=True), uniformly=False)


def _ldu(ins: Instruction, e: Emitter) -> None:
    form = AccessForm(ins, orders=())
    if form.space not in ("global", "generic"):
        raise Unsupported(f"{ins.opcode}: ldu of .{form.named}")
    _lower(ins, e, form, uniformly=True)


def _lower(ins: Instruction, e: Emitter, form: AccessForm, *, uniformly: bool) -> None:
    operands = form.operands(2)
    target, source = operands[0], operands[1]
    if form.hinted:
        e.value(operands[2], 64)
    form.check_items(target)
    register = e.width(target) or form.bits
    if register < form.bits:
        raise Unsupported(f"{ins.opcode}: a {form.bits}-bit element for a {register}-bit register")
    space = form.space
    if space == "param":
        offset = e.parameter(source)
        if offset is not None:
            _parameter(ins, e, form, offset, register)
            return
        # Parameters of a call are in the thread's local memory; a register holds a generic address.
        space = "local" if isinstance(source, Address) and isinstance(source.base, Symbol) else "global"
    access = Access(
        ins.opcode, space, form.bits, form.count, signed=form.kind == "s", register=register, read_only=form.nc
    )
    parts = () if uniformly or form.order != "weak" else _parts(ins, e, access, target)
    reader: Callable[..., Any] = read_partly if parts else load_uniform if uniformly else READERS[space]
    constants = [e.constant(access, "access"), *([e.constant(parts, "parts")] if parts else ())]
    address = shared_operand(e, source) if space in ("shared", "cluster") else e.address(source)
    text = e.call(reader, "w", e.mask, address, *constants, str(e.at))
    if isinstance(target, Vector):
        e.assign_all(target, f"({text},)" if access.elements == 1 else text, register)
    else:
        e.assign(target, text, register)


def _parts(ins: Instruction, e: Emitter, access: Access, target: Operand) -> tuple[tuple[int, Access], ...]:
    """Return the elements of a vector load whose registers are read; empty if all or none are."""
    if not isinstance(target, Vector) or access.space not in ("global", "shared") or access.bits == 128:
        return ()
    used = [not isinstance(item, Register) or e.used(item.slot) for item in target.items]
    if all(used) or not any(used):
        return ()
    element = Access(
        ins.opcode, access.space, access.bits, signed=access.signed, register=access.register,
        read_only=access.read_only,
    )  # fmt: skip
    return tuple((number, element) for number, use in enumerate(used) if use)


def _parameter(ins: Instruction, e: Emitter, form: AccessForm, offset: int, register: int) -> None:
    size = form.bits // 8
    if offset % (size * form.count):
        raise Fault("misaligned", f"{ins.opcode}: parameter byte {offset} is not a multiple of {size * form.count}")
    target = ins.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    for number, item in enumerate(items):
        start = offset + number * size
        if form.kind == "s" and register > form.bits:
            text = e.call(load_parameter_signed, "w", str(start), str(start + size), str(register))
        else:
            text = e.call(load_parameter, "w", str(start), str(start + size))
        e.assign(item, text, register)


LOWERINGS: Mapping[str, Lowering] = {"ld": _ld, "ldu": _ldu}
