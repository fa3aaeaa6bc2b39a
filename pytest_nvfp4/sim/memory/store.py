"""Stores: ``st`` to every state space, ``st.async``, ``st.bulk`` (PTX ISA, "st", "st.async", "st.bulk").

``st.async`` writes shared memory of a CTA of the cluster and signals the bytes to an mbarrier of that CTA; it is
asynchronous, in order per issuing warp. ``st.bulk`` fills shared memory with zeros; size and address are multiples of
8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import WRITE, Access
from pytest_nvfp4.sim.memory.forms import AccessForm
from pytest_nvfp4.sim.memory.locate import AsyncTarget, locate_async
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.memory.write import WRITERS
from pytest_nvfp4.sim.ptx.syntax import Address, Immediate, Instruction, Symbol, Vector
from pytest_nvfp4.sim.sync import mbarrier

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "store_async", "store_bulk"]


def store_async(
    w: Warp, mask: int, address: Bits, values: tuple[Bits, ...], barrier: Bits, access: Access, at: int
) -> None:
    """Execute ``st.async``: write each lane's bytes, then signal them to the lane's mbarrier. Raises Fault."""
    machine = w.cta.launch.machine
    for lane in lanes(mask):
        target = locate_async(w, lane, address, barrier, access, at)
        parts = [value_in(value, lane).to_bytes(access.bits // 8, "little") for value in values]
        data = np.frombuffer(b"".join(parts), np.uint8)
        w.cta.launch.counters["cluster.store_async.bytes"] += data.size

        def action(target: AsyncTarget = target, data: NDArray[np.uint8] = data) -> None:
            target.shared.write(target.start, data, what=access.opcode)
            machine.changes += 1
            mbarrier.complete_tx(target.barrier, data.size, who=(w, at))

        machine.asynchronous.submit(("st.async", w), action, what=access.opcode)


def store_bulk(w: Warp, mask: int, address: Bits, size: Bits, generic: bool, opcode: str, at: int) -> None:
    """Execute ``st.bulk``, which writes zeros.

    Raises:
        Fault: the size or the address is not a multiple of 8, or the bytes are out of bounds.
    """
    shared = w.cta.shared
    for lane in lanes(mask):
        start, many = value_in(address, lane), value_in(size, lane)
        if generic:
            if start < SHARED_WINDOW:
                raise Fault("out-of-bounds", f"{opcode}: generic address {start:#x} is not in shared memory")
            start &= 0xFFFF_FFFF
        if many % 8 or many > 1 << 24:
            raise Fault("misaligned", f"{opcode}: {many} bytes, which must be a multiple of 8 up to 16 MiB")
        index = shared.index(start, many, what=opcode, align=8)
        shared.write(index, np.zeros(many, np.uint8), what=opcode)
        w.cta.launch.counters["shared.store_bulk.bytes"] += many
        if many and w.cta.launch.machine.monitor is not None:
            w.cta.launch.machine.monitor.shared_accessed(w, at, shared, index, many, WRITE)
    w.cta.launch.machine.changes += 1


def _st(ins: Instruction, e: Emitter) -> None:
    form = AccessForm(ins, orders=("weak", "volatile", "relaxed", "release"), caches=("wb", "cg", "cs", "wt"))
    operands = form.operands(ins, 2)
    target, source = operands[0], operands[1]
    if form.hinted:
        e.value(operands[2], 64)
    space = form.space
    if form.named == "const":
        raise Unsupported(f"{ins.opcode}: constant memory cannot be written")
    if space == "param":
        if e.parameter(target) is not None or not (isinstance(target, Address) and isinstance(target.base, Symbol)):
            raise Unsupported(f"{ins.opcode}: only the parameters of a call can be written, by name")
        space = "local"
    items = len(source.items) if isinstance(source, Vector) else 1
    if items != form.count:
        raise Unsupported(f"{ins.opcode}: {items} values")
    access = Access(ins.opcode, space, form.bits, form.count)
    values = e.tuple(source, form.bits)
    e.line(e.call(WRITERS[space], "w", e.mask, e.address(target), values, e.constant(access, "access"), str(e.at)))


def _st_async(ins: Instruction, e: Emitter) -> None:
    parts = [part for part in ins.parts[2:] if part != "weak"]
    if parts[:2] != ["shared::cluster", "mbarrier::complete_tx::bytes"]:
        raise Unsupported(f"{ins.opcode}: only .shared::cluster.mbarrier::complete_tx::bytes is modelled")
    rest = parts[2:]
    count = {"v2": 2, "v4": 4}.get(rest[0], 1) if rest else 1
    kinds = rest[1:] if count > 1 else rest
    if len(kinds) != 1 or kinds[0] not in ("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        raise Unsupported(f"{ins.opcode}: .{'.'.join(rest)} is not modelled")
    bits = int(kinds[0][1:])
    if bits * count > 128 or len(ins.operands) != 3:
        raise Unsupported(f"{ins.opcode}: {count} x {bits} bits, {len(ins.operands)} operands")
    target, source, barrier = ins.operands
    if (len(source.items) if isinstance(source, Vector) else 1) != count:
        raise Unsupported(f"{ins.opcode}: the number of values is not {count}")
    access = e.constant(Access(ins.opcode, "cluster", bits, count), "access")
    values = e.tuple(source, bits)
    e.line(e.call(store_async, "w", e.mask, e.address(target), values, e.address(barrier), access, str(e.at)))


def _st_bulk(ins: Instruction, e: Emitter) -> None:
    parts = [part for part in ins.parts[2:] if part != "weak"]
    if parts not in ([], ["shared::cta"]) or len(ins.operands) != 3:
        raise Unsupported(f"{ins.opcode}: only st.bulk{{.weak}}{{.shared::cta}} [a], size, 0 is modelled")
    target, size, value = ins.operands
    if not isinstance(value, Immediate) or value.value != 0:
        raise Unsupported(f"{ins.opcode}: the value must be the literal 0")
    text = e.value(size, e.width(size) or 64)
    e.line(e.call(store_bulk, "w", e.mask, e.address(target), text, str(not parts), repr(ins.opcode), str(e.at)))


LOWERINGS: Mapping[str, Lowering] = {"st": _st, "st.async": _st_async, "st.bulk": _st_bulk}
