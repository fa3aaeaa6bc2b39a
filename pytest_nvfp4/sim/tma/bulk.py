"""Bulk copies of plain bytes: ``cp.async.bulk``, ``cp.reduce.async.bulk``, and the prefetches.

Rules (PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk", "cp.async.bulk.prefetch", "cp.async.bulk.prefetch.tensor"):

- Sizes and addresses are multiples of 16; both sides must be in bounds, the source of a store initialised.
- To shared memory: complete-tx of ``size`` bytes at the barrier, which lies in the destination's CTA;
  ``.shared::cta`` destinations are the executing CTA's; ``.multicast::cluster`` delivers to the same offset of every
  CTA of the mask.
- From ``.shared::cta`` to ``.shared::cluster``: the destination must be another CTA's memory.
- To global memory: completion by bulk async-groups of the executing thread. ``.cp_mask`` copies byte ``i`` of each 16
  if bit ``i`` of the mask is set. ``.ignore_oob`` is unsupported.
- Reductions: see ``reduction``; ``add`` of f16 and bf16 requires ``.noftz``.
- Prefetches move nothing: only their addresses, sizes and maps are checked.

Counters: ``bulk.load.requests``, ``bulk.load.bytes``, ``bulk.load.multicast.bytes``, ``bulk.cluster.requests``,
``bulk.cluster.bytes`` (to another CTA), ``bulk.store.requests``, ``bulk.store.bytes``, ``bulk.reduce.requests``,
``bulk.reduce.bytes``; loads from global memory count in ``tma.load.unique_bytes`` too, and while the launch counts in
``bulk.load.delivered_sectors`` (32-byte sectors of each copy, once a destination); ``bulk.store.sectors``,
``bulk.reduce.sectors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.finding import UNWRITTEN_SOURCE
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.memory.coverage import note_reduce, note_scatter, note_write
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_operand
from pytest_nvfp4.sim.tma.box import box_at
from pytest_nvfp4.sim.tma.groups import BulkGroups, OutboundCopy, submit_outbound
from pytest_nvfp4.sim.tma.issue import SPACES, InboundCopy, by_lane, check_aligned, signed, submit_inbound, targets
from pytest_nvfp4.sim.tma.load import boxes_of_rows, check_rank, tensor_coordinates, tensor_mode
from pytest_nvfp4.sim.tma.reduction import GLOBAL_TYPES, OPERATIONS, SHARED_TYPES, WIDTHS, reduce_bytes
from pytest_nvfp4.sim.tma.tensormap import use_map
from pytest_nvfp4.sim.tma.traffic import SECTOR, TouchedSectors

ALIGN = 16
"""Alignment of sizes and addresses in bytes."""


@dataclass(frozen=True, slots=True)
class BulkForm:
    """Modifiers of one bulk copy or reduction; ``operation`` and ``kind`` are empty for a copy."""

    opcode: str
    destination: str
    source: str
    multicast: bool = False
    masked: bool = False
    operation: str = ""
    kind: str = ""


# ---- lowering --------------------------------------------------------------------------------------------------------

_STORE = ("shared::cta", "global")
_EXCHANGE = ("shared::cta", "shared::cluster")
_LOADS = (("global", "shared::cta"), ("global", "shared::cluster"))


def lower_bulk(ins: Instruction, e: Emitter) -> None:
    """Lower ``cp.async.bulk`` and ``cp.reduce.async.bulk``."""
    reduces = ins.parts[1] == "reduce"
    read = OpcodeReader(ins, 4 if reduces else 3, ordered=False)
    destination, source = read.one(*SPACES), read.one(*SPACES)
    route = (source, destination)
    if route not in (_STORE, _EXCHANGE) and (reduces or route not in _LOADS):
        raise read.refuse(f"a {'reduction' if reduces else 'copy'} from .{source} to .{destination}")
    operation = kind = ""
    if reduces:
        operation, kind = read.one(*OPERATIONS), read.one(*WIDTHS)
        types = GLOBAL_TYPES if route == _STORE else SHARED_TYPES
        if kind not in types[operation]:
            raise read.refuse(f".{operation} takes .{', .'.join(sorted(types[operation]))}")
        if read.has("noftz") != (operation == "add" and kind in ("f16", "bf16")):
            raise read.refuse(".noftz is required with .add of .f16 and .bf16 and allowed with no other")
    masked = multicast = False
    if route == _STORE:
        read.one("bulk_group")
        masked = not reduces and read.has("cp_mask")
    else:
        read.one("mbarrier::complete_tx::bytes")
        multicast = read.has("multicast::cluster")
        if multicast and route != ("global", "shared::cluster"):
            raise read.refuse(f".multicast::cluster from .{source} to .{destination}")
    hint = route != _EXCHANGE and read.has("L2::cache_hint")
    operands = read.end((3 if route == _STORE else 4) + multicast + masked + hint)
    form = BulkForm(ins.opcode, destination, source, multicast, masked, operation, kind)
    places = zip(operands, (destination, source), strict=False)
    values = [e.address(place) if space == "global" else shared_operand(e, place) for place, space in places]
    values.append(e.value(operands[2], 32))
    if route == _STORE:
        values.append(e.value(operands[-1], e.width(operands[-1]) or 16) if masked else "0xFFFF")
    else:
        values.append(shared_operand(e, operands[3]))
        values.append(e.value(operands[4], e.width(operands[4]) or 16) if multicast else "0")
    run = bulk_out if route == _STORE else bulk_in
    e.line(e.call(run, "w", e.mask, str(e.at), e.constant(form, "copy"), *values))


PREFETCH: Final = "prefetch"
"""Kind of a finding: a warning of a prefetch that passes the end of a tensor."""


def lower_prefetch_bulk(ins: Instruction, e: Emitter) -> None:
    """Lower ``cp.async.bulk.prefetch.L2``."""
    read = OpcodeReader(ins, 4, ordered=False)
    read.each("L2", "global")
    hint = read.has("L2::cache_hint")
    operands = read.end(2 + hint)
    e.line(e.call(prefetch_bulk, "w", e.mask, repr(ins.opcode), e.address(operands[0]), e.value(operands[1], 32)))


def lower_prefetch_tensor(ins: Instruction, e: Emitter) -> None:
    """Lower ``cp.async.bulk.prefetch.tensor``."""
    read = OpcodeReader(ins, 5, ordered=False)
    rank, four_rows = tensor_mode(read, "tile::gather4")
    read.each("L2", "global")
    hint = read.has("L2::cache_hint")
    operands = read.end(1 + hint)
    coordinates = tensor_coordinates(operands[0], 5 if four_rows else rank, e, ins.opcode)
    arguments = (str(e.at), repr(ins.opcode), str(rank), str(four_rows), e.address(operands[0]), coordinates)
    e.line(e.call(prefetch_tensor, "w", e.mask, *arguments))


# ---- to shared memory ------------------------------------------------------------------------------------------------


def bulk_in(
    w: Warp, mask: int, at: int, form: BulkForm, to: Bits, source: Bits, size: Bits, barrier: Bits, ctas: Bits
) -> None:
    """Execute a bulk copy or reduction into shared memory in the lanes of a mask. Raises Fault."""
    for lane, (address, start, count, bar, to_ctas) in by_lane(
        mask, (to, source, size, barrier, ctas), what=form.opcode, fatal=True, report=w.cta.launch.report
    ):
        _in(w, lane, at, form, address, start, count, bar, to_ctas)


def _in(w: Warp, lane: int, at: int, form: BulkForm, address: int, start: int, size: int, bar: int, ctas: int) -> None:
    what = form.opcode
    cta = w.cta
    launch = cta.launch
    machine = launch.machine
    _check_size(size, what)
    receivers = targets(
        cta, address, bar, size=size, align=ALIGN, cluster=form.destination == "shared::cluster",
        multicast=ctas if form.multicast else None, group=0, what=what,
    )  # fmt: skip
    counters = launch.counters
    w.does.add("load")
    if form.source == "global":
        check_aligned(start, ALIGN, what)
        region = machine.memory.region(start, size, write=False, what=what)
        offset = start - region.start
        if (unwritten := region.unwritten(offset, size, what=what, kind=UNWRITTEN_SOURCE)) is not None:
            launch.report_fault(unwritten)
        if launch.counting:
            sectors = launch.unit(TouchedSectors).touch_rows(region, np.array([offset], np.intp), size)
            counters["bulk.load.delivered_sectors"] += len(receivers) * sectors
        data = region.data[offset : offset + size]
        counters["bulk.load.requests"] += 1
        counters["bulk.load.bytes"] += size
        if form.multicast:
            counters["bulk.load.multicast.bytes"] += size * len(receivers)
    else:
        if receivers[0].cta is cta:
            raise Fault(
                "cluster",
                f"{what}: the destination is the executing CTA's own shared memory; it must be another CTA's",
            )
        index = cta.shared.index(start, size, what=what, align=ALIGN)
        if cta.shared.opaque:
            cta.shared.refuse_opaque(index, index + size, what=what)
        data = cta.shared.read(index, size, what=what)
        counters["bulk.cluster.requests"] += 1
        counters["bulk.cluster.bytes"] += size
        if machine.monitor is not None:
            machine.monitor.copy_read(w, at, receivers[0].barrier, index, size)
    if machine.monitor is not None:
        machine.monitor.copy_in(w, at, receivers, size)
        if form.source == "global":
            machine.monitor.global_read_in(w, at, receivers[0].barrier, region, offset, size)
    copy = partial(_combine, data, form) if form.operation else partial(_put, data)
    submit_inbound(
        InboundCopy(w, lane, at, receivers, copy, count=size, what=what), size=size, overwrites=not form.operation
    )
    if machine.operands is not None and form.source == "global":
        machine.operands.filled(w, at, receivers, size, start)


def _put(data: NDArray[np.uint8], shared: SharedMemory, index: int) -> None:
    size = data.size
    shared.data[index : index + size] = data
    shared.written[index : index + size] = True


def _combine(data: NDArray[np.uint8], form: BulkForm, shared: SharedMemory, index: int) -> None:
    target = shared.read(index, data.size, what=form.opcode)
    target[:] = reduce_bytes(form.operation, form.kind, target, data)


# ---- to global memory ------------------------------------------------------------------------------------------------


def bulk_out(w: Warp, mask: int, at: int, form: BulkForm, to: Bits, source: Bits, size: Bits, cp_mask: Bits) -> None:
    """Execute a bulk copy or reduction into global memory in the lanes of a mask. Raises Fault."""
    for lane, (address, start, count, bits) in by_lane(
        mask, (to, source, size, cp_mask), what=form.opcode, fatal=False, report=w.cta.launch.report
    ):
        _out(w, lane, at, form, address, start, count, bits)


def _out(w: Warp, lane: int, at: int, form: BulkForm, address: int, start: int, size: int, cp_mask: int) -> None:
    what = form.opcode
    cta = w.cta
    launch = cta.launch
    machine = launch.machine
    _check_size(size, what)
    check_aligned(address, ALIGN, what)
    region = machine.memory.region(address, size, write=True, what=what)
    shared = cta.shared
    index = shared.index(start, size, what=what, align=ALIGN)
    if shared.opaque:
        shared.refuse_opaque(index, index + size, what=what)
    chosen = None
    if form.masked:
        chosen = np.flatnonzero(np.tile([bool(cp_mask >> bit & 1) for bit in range(16)], size // 16))
        if not shared.written[index + chosen].all():
            raise shared.uninitialised(index + int(chosen[np.argmin(shared.written[index + chosen])]), what=what)
    else:
        shared.read(index, size, what=what)
    name = "reduce" if form.operation else "store"
    w.does.add("store")
    launch.counters[f"bulk.{name}.requests"] += 1
    launch.counters[f"bulk.{name}.bytes"] += size if chosen is None else chosen.size
    launch.counters[f"bulk.{name}.sectors"] += (address + size - 1) // SECTOR - address // SECTOR + 1
    read = partial(_snapshot, shared, index, size)
    if launch.detail is not None:
        launch.detail.copied("store", cta, at, index, size)
    if form.operation:
        if (unwritten := region.unwritten(address - region.start, size, what=what)) is not None:
            launch.report_fault(unwritten)
        write = partial(_reduce, region, address - region.start, form, cta)
    else:
        write = partial(_write, region, address - region.start, chosen, cta, at)
    if machine.monitor is not None:
        machine.monitor.copy_out(w, at, lane, index, size)
        machine.monitor.global_written_out(w, at, lane, region, address - region.start, size, bool(form.operation))
    submit_outbound(OutboundCopy(cta.unit(BulkGroups).thread(w, lane), at, read, write, what=what))


def _snapshot(shared: SharedMemory, index: int, size: int) -> NDArray[np.uint8]:
    return shared.data[index : index + size].copy()


def _write(
    region: Region, offset: int, chosen: NDArray[np.intp] | None, cta: Cta, at: int, data: NDArray[np.uint8]
) -> None:
    if chosen is None:
        region.data[offset : offset + data.size] = data
        if region.initialised is not None:
            region.initialised[offset : offset + data.size] = True
        note_write(region, offset, data.size, cta.linear, at)
        return
    places = chosen + offset
    region.data[places] = data[chosen]
    if region.initialised is not None:
        region.initialised[places] = True
    if chosen.size:
        units = np.unique(places // region.owner_bytes) * region.owner_bytes
        note_scatter(region, units, region.owner_bytes, cta.linear, at)


def _reduce(region: Region, offset: int, form: BulkForm, cta: Cta, data: NDArray[np.uint8]) -> None:
    target = region.data[offset : offset + data.size]
    target[:] = reduce_bytes(form.operation, form.kind, target, data)
    if region.initialised is not None:
        region.initialised[offset : offset + data.size] = True
    note_reduce(region, offset, data.size, cta.linear)


# ---- prefetches ------------------------------------------------------------------------------------------------------


def prefetch_bulk(w: Warp, mask: int, what: str, address: Bits, size: Bits) -> None:
    """Check the range of a prefetch, which reads nothing: beyond the end of a tensor it is a warning. Raises Fault."""
    launch = w.cta.launch
    memory = launch.machine.memory
    for _, (start, count) in by_lane(mask, (address, size), what=what, fatal=False, report=None):
        _check_size(count, what)
        check_aligned(start, ALIGN, what)
        region = memory.find(start)
        if region is not None and start + count > region.end:
            launch.report(
                PREFETCH,
                f"{what}: prefetches {start + count - region.end} of {count} bytes beyond the end of {region.name}",
                hint="end the prefetch with the tensor: these bytes are of no use, and may belong to no allocation",
            )
        else:
            memory.region(start, count, write=False, what=what)


def prefetch_tensor(
    w: Warp, mask: int, at: int, what: str, rank: int, four_rows: bool, where: Bits, coordinates: tuple[Bits, ...]
) -> None:
    """Check the map and the box of a prefetch. Raises Fault."""
    memory = w.cta.launch.machine.memory
    for _, (address, *corner) in by_lane(mask, (where, *coordinates), what=what, fatal=False, report=None):
        use, tile = use_map(w, address, what=what)
        check_rank(tile, rank, what)
        if use.modifiable is not None and w.cta.launch.machine.monitor is not None:
            w.cta.launch.machine.monitor.map_prefetched(w, at, address)
        first = tuple([signed(c) for c in corner])
        if four_rows:
            boxes_of_rows(tile, w, first, write=False, what=what)
        else:
            box_at(tile, first, memory, write=False, what=what)


def _check_size(size: int, what: str) -> None:
    if size % ALIGN:
        raise Fault("bulk-copy", f"{what}: {size} bytes; the size must be a multiple of {ALIGN}")
