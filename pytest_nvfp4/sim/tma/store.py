"""Tensor copies out of shared memory: ``cp.async.bulk.tensor.*.global`` and the reductions ``cp.reduce``.

Rules (PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"; see ``box`` and ``box_order`` for the box and its
order in shared memory):

- Modes ``tile`` (the default) and ``tile::scatter4``; ``im2col`` modes are unsupported. The source is the executing
  CTA's own shared memory at a multiple of 128 bytes.
- Elements outside the tensor are not written, and their bytes of shared memory may be uninitialised.
- Completion is by bulk async-groups of the executing thread (``groups``).
- A reduction's element type is the map's; ``reduction`` lists the operations.

Lanes of a warp that issue the same store make one, which belongs to the lowest lane: CuTe DSL emits its stores for the
whole warp, and the machine code has one ``UTMASTG`` for each warp. For a reduction this is a fault (the DSL elects a
lane).

Counters: ``tma.store.requests``, ``tma.store.bytes`` (bytes written, inside the tensor), while the launch counts
``tma.store.sectors`` (32-byte sectors of each row), and the same of ``tma.reduce``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.memory.coverage import note_reduce, note_rows
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_operand
from pytest_nvfp4.sim.tma.box import TmaBox, box_at, gathered
from pytest_nvfp4.sim.tma.box_order import BoxOrder
from pytest_nvfp4.sim.tma.groups import BulkGroups, OutboundCopy, submit_outbound
from pytest_nvfp4.sim.tma.issue import SPACES, by_lane, report_outside, signed
from pytest_nvfp4.sim.tma.load import boxes_of_rows, check_rank, tensor_coordinates, tensor_mode
from pytest_nvfp4.sim.tma.reduction import GLOBAL_TYPES, OPERATIONS, reduce_bytes
from pytest_nvfp4.sim.tma.tensormap import use_map
from pytest_nvfp4.sim.tma.tile import ALIGN, TmaTile
from pytest_nvfp4.sim.tma.traffic import TouchedSectors


@dataclass(frozen=True, slots=True)
class TensorStoreForm:
    """Modifiers of one tensor store or reduction; ``operation`` is empty for a store."""

    opcode: str
    rank: int
    four_rows: bool
    operation: str


def lower_store(ins: Instruction, e: Emitter) -> None:
    """Lower a tensor store or reduction."""
    reduces = ins.parts[1] == "reduce"
    read = OpcodeReader(ins, 5 if reduces else 4, ordered=False)
    operation = read.one(*OPERATIONS) if reduces else ""
    rank, four_rows = tensor_mode(read, "tile::scatter4")
    if four_rows and operation:
        raise Unsupported(f"{ins.opcode}: a reduction with .tile::scatter4")
    if (read.one(*SPACES), read.one(*SPACES)) != ("global", "shared::cta"):
        raise Unsupported(f"{ins.opcode}: only from .shared::cta to .global")
    read.one("bulk_group")
    hint = read.has("L2::cache_hint")
    operands = read.end(2 + hint)
    form = TensorStoreForm(ins.opcode, rank, four_rows, operation)
    coordinates = tensor_coordinates(operands[0], 5 if four_rows else rank, e, ins.opcode)
    arguments = ("w", e.mask, str(e.at), e.constant(form, "store"), e.address(operands[0]))
    e.line(e.call(store_tensor, *arguments, shared_operand(e, operands[1]), coordinates))


def store_tensor(
    w: Warp, mask: int, at: int, form: TensorStoreForm, tensor_map: Bits, source: Bits, coordinates: tuple[Bits, ...]
) -> None:
    """Execute a tensor store or reduction in the lanes of a mask. Raises Fault."""
    seen: set[tuple[int, ...]] = set()
    for lane, values in by_lane(
        mask, (tensor_map, source, *coordinates), what=form.opcode, fatal=bool(form.operation), report=None
    ):
        if values not in seen:
            seen.add(values)
            _issue(w, lane, at, form, values[0], values[1], values[2:])


def _issue(
    w: Warp, lane: int, at: int, form: TensorStoreForm, where: int, address: int, coordinates: tuple[int, ...]
) -> None:
    what = form.opcode
    cta = w.cta
    launch = cta.launch
    machine = launch.machine
    use, tile = use_map(w, where, what=what)
    check_rank(tile, form.rank, what)
    if tile.row != tile.inner:
        raise Unsupported(f"{what}: a store of padded elements ({tile.map.describe()})")
    coordinates = tuple([signed(c) for c in coordinates])
    tile.check_alignment(coordinates[0], machine.model.capability, what=what, report=launch.report)
    if form.four_rows:
        boxes = boxes_of_rows(tile, w, coordinates, write=True, what=what)
    else:
        boxes = [box_at(tile, coordinates, machine.memory, write=True, what=what)]
    report_outside(w, boxes, coordinates, what=what)
    order = tile.order(address, four_rows=form.four_rows)
    shared = cta.shared
    index = shared.index(address, order.footprint, what=what, align=ALIGN)
    if shared.opaque:
        shared.refuse_opaque(index, index + order.footprint, what=what)
    if not shared.written[index : index + order.footprint].all():
        _check_written(shared, index, order, boxes, what)
    name = "reduce" if form.operation else "store"
    counters = launch.counters
    w.does.add("store")
    counters[f"tma.{name}.requests"] += 1
    counters[f"tma.{name}.bytes"] += sum(box.inside_bytes for box in boxes)
    if launch.counting:
        counters[f"tma.{name}.sectors"] += sum(map(launch.unit(TouchedSectors).count, boxes))
    if form.operation:
        if (unwritten := boxes[0].unwritten(what, kind="uninitialised")) is not None:
            launch.report_fault(unwritten)
        write = partial(_reduce, boxes[0], form.operation, _element_type(tile, form), cta)
    else:
        write = partial(_write, boxes, cta, at)
    read = partial(_read, shared, index, order)
    if launch.detail is not None:
        launch.detail.copied("store", cta, at, index, order.footprint)
    if machine.monitor is not None:
        machine.monitor.copy_out(w, at, lane, index, order.footprint)
        machine.monitor.global_copied_out(w, at, lane, boxes, bool(form.operation))
        if use.modifiable is not None:
            machine.monitor.map_stored(w, at, lane, where)
    submit_outbound(OutboundCopy(cta.unit(BulkGroups).thread(w, lane), at, read, write, what=what))


def _check_written(shared: SharedMemory, index: int, order: BoxOrder, boxes: list[TmaBox], what: str) -> None:
    """Raise Fault if a byte that goes to global memory was never written."""
    written = shared.written[index : index + order.footprint].view(np.uint8)
    ordered = gathered(written, order)
    # By byte of the boxes in row-major order, its offset from the shared address.
    places = (order.units[:, None] * 16 + np.arange(16)).ravel()
    size = ordered.size // len(boxes)
    for number, box in enumerate(boxes):
        if box.region is None:
            continue
        part = slice(number * size, (number + 1) * size)
        missing = box.inside(ordered[part]) == 0
        if missing.any():
            first = int(box.inside(places[part])[missing][0])
            raise shared.uninitialised(index + first, what=what)


def _read(shared: SharedMemory, index: int, order: BoxOrder) -> NDArray[np.uint8]:
    return gathered(shared.data[index : index + order.footprint], order)


def _write(boxes: list[TmaBox], cta: Cta, at: int, data: NDArray[np.uint8]) -> None:
    size = data.size // len(boxes)
    for number, box in enumerate(boxes):
        region = box.region
        if region is None:
            continue
        box.view()[...] = box.inside(data[number * size : (number + 1) * size])
        if region.owner is not None:
            offsets, wide = box.rows()
            inner = box.inner_rows
            for row in offsets.reshape(-1, inner):
                pitch = int(row[1] - row[0]) if inner > 1 else wide
                note_rows(region, int(row[0]), wide, inner, pitch, cta.linear, at)
        if region.initialised is not None:
            box.view(region.initialised)[...] = True


def _element_type(tile: TmaTile, form: TensorStoreForm) -> str:
    """Return the PTX name of a reduction's element type. Raises Fault or Unsupported."""
    kind = tile.map.element_type.name.lower()
    if kind not in GLOBAL_TYPES[form.operation]:
        raise Fault(
            "tensor map",
            f"{form.opcode}: .{form.operation} of elements of type {tile.map.element_type.name}; it takes "
            f"{', '.join(sorted(GLOBAL_TYPES[form.operation]))} ({tile.map.describe()})",
        )
    if any(pitch < tile.inner for pitch in tile.pitches):
        raise Unsupported(f"{form.opcode}: a reduction whose rows overlap ({tile.map.describe()})")
    return kind


def _reduce(box: TmaBox, operation: str, kind: str, cta: Cta, data: NDArray[np.uint8]) -> None:
    region = box.region
    if region is None:
        return
    view = box.view()
    view[...] = reduce_bytes(operation, kind, np.ascontiguousarray(view), np.ascontiguousarray(box.inside(data)))
    if region.initialised is not None:
        box.view(region.initialised)[...] = True
    if region.owner is not None:
        offsets, wide = box.rows()
        for offset in offsets.tolist():
            note_reduce(region, offset, wide, cta.linear)
