"""Stores: ``st`` to every state space, ``st.async``, ``st.bulk`` (PTX ISA, "st", "st.async", "st.bulk").

``st.async`` writes shared memory of a CTA of the cluster and signals the bytes to an mbarrier of that CTA; it is
asynchronous, in order per issuing warp. ``st.bulk`` fills shared memory with zeros; size and address are multiples of
8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import WRITE, Access
from pytest_nvfp4.sim.memory.forms import VECTORS, AccessForm
from pytest_nvfp4.sim.memory.locate import AsyncTarget, locate_async, mark_written, refuse_opaque, scatter
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.memory.write import WRITERS, lane_rows
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Address, Instruction, Symbol
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync import mbarrier
from pytest_nvfp4.sim.sync.addresses import shared_operand


def store_async(
    w: Warp, mask: int, address: Bits, values: tuple[Bits, ...], barrier: Bits, access: Access, at: int
) -> None:
    """Execute ``st.async``: write each lane's bytes, then signal them to the lane's mbarrier. Raises Fault."""
    machine = w.cta.launch.machine
    for target in locate_async(w, mask, address, barrier, access, at):
        where = target.where
        rows = lane_rows(where.mask, values, access)

        def action(target: AsyncTarget = target, rows: NDArray[Any] = rows) -> None:
            shared, start, where, signalled = target
            refuse_opaque(shared, start, where, access)
            scatter(shared.data, start, where, rows, access)
            mark_written(shared.written, start, where, access)
            machine.changes += 1
            mbarrier.complete_lanes(signalled, access.size, where.active.size, source=(w, at))

        w.cta.launch.counters["cluster.store_async.bytes"] += access.size * where.active.size
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
    operands = form.operands(2)
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
    form.check_items(source)
    access = Access(ins.opcode, space, form.bits, form.count)
    values = e.tuple(source, form.bits)
    address = shared_operand(e, target) if space in ("shared", "cluster") else e.address(target)
    e.line(e.call(WRITERS[space], "w", e.mask, address, values, e.constant(access, "access"), str(e.at)))


def _st_async(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 2)
    read.has("weak")
    read.each("shared::cluster", "mbarrier::complete_tx::bytes")
    count = VECTORS[read.maybe("v2", "v4")]
    bits = int(read.one("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")[1:])
    target, source, barrier = read.end(3)
    if bits * count > 128:
        raise read.refuse(f"{count} x {bits} bits")
    read.items(source, count)
    access = e.constant(Access(ins.opcode, "cluster", bits, count), "access")
    values = e.tuple(source, bits)
    where, signalled = shared_operand(e, target), shared_operand(e, barrier)
    e.line(e.call(store_async, "w", e.mask, where, values, signalled, access, str(e.at)))


def _st_bulk(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 2)
    read.has("weak")
    generic = not read.has("shared::cta")
    target, size, value = read.end(3)
    if read.immediate(value, "the value") != 0:
        raise read.refuse("the value must be the literal 0")
    text = e.value(size, e.width(size) or 64)
    address = e.address(target) if generic else shared_operand(e, target)
    e.line(e.call(store_bulk, "w", e.mask, address, text, str(generic), repr(ins.opcode), str(e.at)))


LOWERINGS: Mapping[str, Lowering] = {"st": _st, "st.async": _st_async, "st.bulk": _st_bulk}
