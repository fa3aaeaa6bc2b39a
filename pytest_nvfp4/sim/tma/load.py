"""Tensor copies into shared memory: ``cp.async.bulk.tensor.*.shared::{cta,cluster}.global``.

Rules (PTX ISA, "cp.async.bulk.tensor"; see ``box`` and ``box_order`` for the box and its order in shared memory):

- Modes ``tile`` (the default) and ``tile::gather4``: four rows of one tensor of rank 2, coordinates ``{c0, r0, r1,
  r2, r3}``, laid out as a box of four rows; the map's box must have one row. ``im2col`` modes are unsupported.
- ``.shared::cta`` is the executing CTA's own memory. ``.shared::cluster`` may be any CTA's of the cluster; the
  barrier must lie in the same CTA. With ``.multicast::cluster`` the data go to the same offset in every CTA of the
  16-bit mask, and the barrier at the same offset of each is signalled; with ``.cta_group::2`` it is the barrier of the
  destination's pair that has the parity of the barrier operand's CTA.
- complete-tx of the box's bytes, out-of-bounds elements included (measured on an H200), when the data have arrived.
- Cache hints have no functional effect.

One lane issues a load. Several lanes with the same operands are a fault, because the barrier would count the bytes of
each.

Counters: ``tma.load.requests``, ``tma.load.bytes`` (bytes of boxes, once a request), ``tma.load.multicast.bytes``
(bytes delivered by multicast requests, once a destination), and while the launch counts: ``tma.load.unique_bytes``
(32-byte sectors of global memory that any load touched, each once), ``tma.load.delivered_sectors`` (those of each row
of a box, as if rows began at sectors, outside the tensor too, once a destination: what an H200 counts) and
``tma.load.unaligned_requests`` (requests whose rows do not begin at sectors, of which an H200 reads more).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, TensorAddress
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_operand
from pytest_nvfp4.sim.tma.box import TmaBox, box_at, gather4
from pytest_nvfp4.sim.tma.issue import SPACES, InboundCopy, by_lane, report_outside, submit_inbound, targets
from pytest_nvfp4.sim.tma.route import Route, Routes
from pytest_nvfp4.sim.tma.tensormap import use_map
from pytest_nvfp4.sim.tma.tile import ALIGN, TmaTile
from pytest_nvfp4.sim.tma.traffic import SECTOR, TouchedSectors

_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_IM2COL = ("im2col", "im2col_no_offs", "im2col::w", "im2col::w::128")


@dataclass(frozen=True, slots=True)
class TensorLoadForm:
    """Modifiers of one tensor load."""

    opcode: str
    rank: int
    four_rows: bool
    cluster: bool
    multicast: bool
    group: int


def tensor_mode(read: OpcodeReader, four_rows: str) -> tuple[int, bool]:
    """Read the rank and the mode of a tensor copy; return the rank, and whether the mode is ``four_rows``."""
    rank = int(read.one(*_DIMENSIONS)[0])
    for mode in _IM2COL:
        if read.has(mode):
            raise Unsupported(f"{read.opcode}: the mode .{mode}")
    mode = read.maybe("tile", four_rows) or "tile"
    if mode != "tile" and rank != 2:
        raise Unsupported(f"{read.opcode}: .{mode} with a tensor of rank {rank}; it requires rank 2")
    return rank, mode != "tile"


def lower_load(ins: Instruction, e: Emitter) -> None:
    """Lower a tensor load."""
    read = OpcodeReader(ins, 4, ordered=False)
    rank, four_rows = tensor_mode(read, "tile::gather4")
    destination, source = read.one(*SPACES), read.one(*SPACES)
    if source != "global" or destination == "global":
        raise Unsupported(f"{ins.opcode}: from {source} to {destination}")
    read.one("mbarrier::complete_tx::bytes")
    multicast = read.has("multicast::cluster")
    if multicast and destination != "shared::cluster":
        raise Unsupported(f"{ins.opcode}: .multicast::cluster to .{destination}")
    group = int(read.maybe("cta_group::1", "cta_group::2")[-1:] or 0)
    hint = read.has("L2::cache_hint")
    operands = read.end(3 + multicast + hint)
    form = TensorLoadForm(ins.opcode, rank, four_rows, destination == "shared::cluster", multicast, group)
    coordinates = tensor_coordinates(operands[1], 5 if four_rows else rank, e, ins.opcode)
    cta_mask = e.value(operands[3], e.width(operands[3]) or 16) if multicast else "0"
    addresses = [shared_operand(e, operands[0]), e.address(operands[1]), shared_operand(e, operands[2])]
    e.line(
        e.call(
            load_tensor, "w", e.mask, str(e.at), e.constant(form, "load"), *addresses, cta_mask, coordinates
        )
    )  # fmt: skip


def tensor_coordinates(operand: object, count: int, e: Emitter, opcode: str) -> str:
    """Return the expression of the tuple of a tensor address's ``count`` coordinates. Raises Unsupported."""
    if not isinstance(operand, TensorAddress) or len(operand.vectors) != 1:
        raise Unsupported(f"{opcode}: operand {operand!r} is not a tensor map with one vector of coordinates")
    coordinates = e.coordinates(operand)
    if len(coordinates) != count:
        raise Unsupported(f"{opcode}: {len(coordinates)} coordinates; {count} are required")
    return "(" + "".join(f"{coordinate}, " for coordinate in coordinates) + ")"


def load_tensor(
    w: Warp, mask: int, at: int, form: TensorLoadForm, destination: Bits, tensor_map: Bits, barrier: Bits,
    cta_mask: Bits, coordinates: tuple[Bits, ...],
) -> None:  # fmt: skip
    """Execute a tensor load in the lanes of a mask. Raises Fault."""
    values = (destination, tensor_map, barrier, cta_mask, *coordinates)
    if not mask & (mask - 1):
        lane = mask.bit_length() - 1
        address, where, bar, ctas, *at_box = [v if v.__class__ is int else int(v[lane]) for v in values]  # type: ignore[index]
        _issue(w, lane, at, form, address, where, bar, ctas, at_box)
        return
    for lane, (address, where, bar, ctas, *at_box) in by_lane(
        mask, values, what=form.opcode, fatal=True, report=w.cta.launch.report
    ):
        _issue(w, lane, at, form, address, where, bar, ctas, at_box)


def check_rank(tile: TmaTile, rank: int, what: str) -> TmaTile:
    """Return the tile. Raises Fault if its rank is not the instruction's."""
    if tile.map.rank != rank:
        raise Fault(
            "tensor map",
            f"{what}: the tensor map has rank {tile.map.rank} and the instruction {rank} ({tile.map.describe()})",
            hint="the coordinates and the map belong to different tensors, or the map was not written completely",
        )
    return tile


def boxes_of_rows(tile: TmaTile, w: Warp, coordinates: tuple[int, ...], *, write: bool, what: str) -> list[TmaBox]:
    """Return the boxes of ``tile::gather4`` and ``tile::scatter4``. Raises Fault if the map's box has several rows."""
    if tile.rows != 1:
        raise Fault(
            "tensor map",
            f"{what}: the map's box has {tile.rows} rows; this mode needs a box of one ({tile.map.describe()})",
        )
    memory = w.cta.launch.machine.memory
    return [box_at(tile, (coordinates[0], row), memory, write=write, what=what) for row in coordinates[1:]]


def _issue(
    w: Warp, lane: int, at: int, form: TensorLoadForm, address: int, where: int, bar: int, ctas: int,
    at_box: Sequence[int],
) -> None:  # fmt: skip
    what = form.opcode
    cta = w.cta
    launch = cta.launch
    machine = launch.machine
    routes = cta.unit(Routes)
    key = (form, address, where, bar, ctas)
    route = routes.get(key)
    if route is not None and not route.valid(cta, what=what):
        route = None
    if route is not None:
        use, tile, order = route.use, route.tile, route.order
    else:
        use, tile = use_map(w, where, what=what)
        check_rank(tile, form.rank, what)
        order = tile.order(address, four_rows=form.four_rows)
    coordinates = tuple([c - 0x1_0000_0000 if c & 0x8000_0000 else c for c in at_box])
    if coordinates[0]:
        tile.check_alignment(coordinates[0], machine.model.capability, what=what, report=launch.report)
    if form.four_rows:
        boxes = boxes_of_rows(tile, w, coordinates, write=False, what=what)
        size = 4 * tile.inner
        copy = partial(gather4, boxes, order)
    else:
        box = box_at(tile, coordinates, machine.memory, write=False, what=what)
        boxes = [box]
        size = tile.bytes
        copy = partial(box.load, order)
    report_outside(w, boxes, coordinates, what=what)
    for each in boxes:
        if (unwritten := each.unwritten(what)) is not None:
            launch.report_fault(unwritten)
    if machine.without_data:
        copy = partial(boxes[0].reserve, order)
    if route is not None:
        receivers = route.targets
    else:
        receivers = targets(
            cta, address, bar, size=order.footprint, align=ALIGN, cluster=form.cluster,
            multicast=ctas if form.multicast else None, group=form.group, what=what,
        )  # fmt: skip
        routes[key] = Route(use, tile, order, receivers)
    counters = launch.counters
    w.does.add("load")
    counters["tma.load.requests"] += 1
    counters["tma.load.bytes"] += size
    if form.multicast:
        counters["tma.load.multicast.bytes"] += size * len(receivers)
    if launch.counting:
        touched = launch.unit(TouchedSectors)
        for each in boxes:
            touched.touch(each)
        counters["tma.load.delivered_sectors"] += len(receivers) * (size // tile.inner) * -(-tile.inner // SECTOR)
        if not tile.whole_sectors or coordinates[0] * tile.bits // 8 % SECTOR:
            counters["tma.load.unaligned_requests"] += 1
    units = order.units if order.source is None else None
    if machine.monitor is not None:
        machine.monitor.copy_in(w, at, receivers, order.footprint, units, boxes[0])
        machine.monitor.global_copied_in(w, at, receivers[0].barrier, boxes)
        if use.modifiable is not None:
            machine.monitor.map_loaded(w, at, where, receivers)
    inbound = InboundCopy(w, lane, at, receivers, copy, count=size, what=what)
    submit_inbound(inbound, size=order.footprint, units=units)
    if machine.operands is not None:
        machine.operands.loaded(w, at, receivers, order, boxes, coordinates)
