"""``tcgen05.alloc``, ``.dealloc``, ``.relinquish_alloc_permit`` (PTX ISA, "Tensor Memory Allocation and Management").

- A warp allocates a power of two of columns, 32 to 512, and receives the address of the first through shared memory; it
  waits while no such block of columns is free. Each CTA has all of TMEM here; allocations of other CTAs on the same SM
  are not modelled.
- Blocks lie at multiples of their size, lowest first.
- After ``relinquish_alloc_permit`` no warp of the CTA may allocate.
- ``dealloc`` takes the address and the number of columns of one allocation, exactly; everything must be freed before
  the kernel ends (otherwise a finding ``tmem`` at exit).
- With ``.cta_group::2`` a warp of each CTA of the pair takes part: the first waits for the other's, with the same
  number of columns, and both receive the same address. ``dealloc`` may return before its peer's, as it does here.
- All tcgen05 instructions of a kernel have one ``.cta_group``.

Counters: ``tmem.allocations``, ``tmem.columns`` (of all of them).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.memory.access import WRITE
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.sync.addresses import shared_address, shared_operand
from pytest_nvfp4.sim.tcgen05.group import group_of, same_group
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, Tmem


class Block(NamedTuple):
    """An allocation, or a request for one: its number of columns, and the warp that made it."""

    columns: int
    warp: int


class Allocator:
    """Allocations of one CTA: ``cta.unit(Allocator)``. Warps that need columns wait for it.

    Attributes:
        blocks: Live allocations by first column.
        allocated_at: The instruction of the last allocation, by first column.
        offer: A pair's request that waits for the other CTA.
        granted: First column of a pair's allocation that the other CTA completed.
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.waiters: list[Group] = []
        self.blocks: dict[int, Block] = {}
        self.allocated_at: dict[int, int] = {}
        self.relinquished = False
        self.offer: Block | None = None
        self.granted: int | None = None
        self._serial = 0

    def waiting_for(self) -> str:
        """Return what warps wait for, for the report of a deadlock."""
        if self.offer is not None:
            return (
                f"tcgen05.alloc.cta_group::2 of {self.offer.columns} columns by warp {self.offer.warp} waits for its "
                "peer"
            )
        held = ", ".join(f"[{c}, {c + n}) by warp {w}" for c, (n, w) in sorted(self.blocks.items())) or "none"
        return f"free TMEM columns (allocated: {held})"

    def fits(self, count: int) -> list[int]:
        """Return the columns at which a block of ``count`` columns could start."""
        owner = self.cta.unit(Tmem).owner
        return [c for c in range(0, COLUMNS, count) if owner.count(0, c, c + count) == count]

    def take(self, column: int, count: int, warp: int) -> None:
        """Allocate ``count`` columns from ``column`` on to a warp."""
        # The owner of a column is a byte, with 0 for none; at most 16 blocks are live at a time.
        self._serial = self._serial % 255 + 1
        self.cta.unit(Tmem).take(column, count, self._serial)
        self.blocks[column] = Block(count, warp)
        self.cta.launch.counters["tmem.allocations"] += 1
        self.cta.launch.counters["tmem.columns"] += count

    def at_exit(self) -> None:
        """Report columns that were never freed."""
        launch = self.cta.launch
        for column, (count, warp) in sorted(self.blocks.items()):
            at = self.allocated_at.get(column)
            launch.report(
                "tmem",
                f"the CTA ended, but TMEM columns [{column}, {column + count}), allocated by warp {warp}, are not free",
                hint="free every tcgen05.alloc with a tcgen05.dealloc, or the next CTA on the SM waits forever",
                where=launch.where_cta(self.cta) if at is None else launch.where(self.cta.warps[warp], at),
            )


def alloc(w: Warp, mask: int, destination: Bits, count: Bits, group: int, at: int) -> int | None:
    """Allocate columns and write the address of the first to shared memory.

    Returns:
        The first column, or None while the warp must wait.

    Raises:
        Fault: an illegal number of columns, an allocation after the permit was relinquished, a bad destination.
    """
    what = f"tcgen05.alloc.cta_group::{group}"
    cta = w.cta
    same_group(cta, group, what=what)
    columns = _uniform(count, mask, what, "number of columns")
    if not 32 <= columns <= COLUMNS or columns & (columns - 1):
        raise Fault(
            "tmem",
            f"{what}: {columns} columns; the number must be a power of two from 32 to {COLUMNS}",
            hint="round the number up; an accumulator of 128 x 128 in fp32 takes 128 columns, scale factors take more",
        )
    unit = cta.unit(Allocator)
    if unit.relinquished:
        raise Fault(
            "tmem",
            f"{what}: the CTA relinquished its permit to allocate (tcgen05.relinquish_alloc_permit)",
            hint="allocate everything before the permit is relinquished",
        )
    address = _uniform(destination, mask, what, "destination address")
    index = cta.shared.index(address, 4, what=what, align=4)
    if group == 1:
        places = unit.fits(columns)
        if not places:
            w.wait_for(unit)
            return None
        column = places[cta.launch.machine.asynchronous.pick(len(places))]
        unit.take(column, columns, w.index)
    else:
        common = _alloc_pair(w, unit, columns, what)
        if common is None:
            return None
        column = common
    unit.allocated_at[column] = at
    cta.shared.write(index, np.frombuffer(column.to_bytes(4, "little"), np.uint8), what=what)
    if cta.launch.machine.monitor is not None:
        cta.launch.machine.monitor.tmem_allocated(w, at, column, columns, pair=group == 2)
        cta.launch.machine.monitor.shared_accessed(w, at, cta.shared, index, 4, WRITE)
    return column


def _alloc_pair(w: Warp, unit: Allocator, columns: int, what: str) -> int | None:
    """Allocate in both CTAs of a pair: the first makes an offer and waits, the second completes both allocations."""
    if unit.granted is not None:
        column, unit.granted, unit.offer = unit.granted, None, None
        return column
    peer = w.cta.peer(w.cta.rank ^ 1, what=what).unit(Allocator)
    if unit.offer is not None:
        w.wait_for(unit)
        return None
    if peer.offer is None or peer.granted is not None:
        unit.offer = Block(columns, w.index)
        w.wait_for(unit)
        return None
    if peer.offer.columns != columns:
        raise Fault(
            "tmem",
            f"{what}: {columns} columns here, but the peer CTA requests {peer.offer.columns}",
            hint="allocate the same number of columns in both CTAs of a pair, in the same order",
        )
    common = sorted(set(unit.fits(columns)) & set(peer.fits(columns)))
    if not common:
        w.wait_for(unit)
        return None
    column = common[w.cta.launch.machine.asynchronous.pick(len(common))]
    peer.take(column, columns, peer.offer.warp)
    unit.take(column, columns, w.index)
    peer.granted = column
    wake_all(peer)
    return column


def dealloc(w: Warp, mask: int, address: Bits, count: Bits, group: int, at: int) -> None:
    """Free an allocation. Raises Fault unless the address and count are those of one."""
    what = f"tcgen05.dealloc.cta_group::{group}"
    cta = w.cta
    same_group(cta, group, what=what)
    column = _uniform(address, mask, what, "address")
    columns = _uniform(count, mask, what, "number of columns")
    unit = cta.unit(Allocator)
    block = unit.blocks.get(column)
    if block is None or block.columns != columns:
        held = ", ".join(f"{n} columns at {c:#x}" for c, (n, _) in sorted(unit.blocks.items())) or "none"
        raise Fault(
            "tmem",
            f"{what}: {columns} columns at address {column:#010x} are no allocation (allocated: {held})",
            hint="free each allocation once, with the address from tcgen05.alloc and the same number of columns",
        )
    del unit.blocks[column]
    if cta.launch.machine.monitor is not None:
        cta.launch.machine.monitor.tmem_freed(w, at, column, columns)
    cta.unit(Tmem).free(column, columns, warp=w.index, at=at)
    wake_all(unit)
    if group == 2:
        # Not cta.peer: the peer may have exited.
        wake_all(cta.cluster.ctas[cta.rank ^ 1].unit(Allocator))


def relinquish(w: Warp, group: int) -> None:
    """Relinquish the CTA's permit to allocate."""
    same_group(w.cta, group, what=f"tcgen05.relinquish_alloc_permit.cta_group::{group}")
    w.cta.unit(Allocator).relinquished = True


def _uniform(value: Bits, mask: int, what: str, name: str) -> int:
    common = uniform(value, mask)
    if common is None:
        raise Fault("tmem", f"{what}: the {name} differs between the lanes of the warp")
    return common


def _lower_alloc(ins: Instruction, e: Emitter) -> None:
    group, read = group_of(ins)
    read.each("sync", "aligned")
    generic = not read.has("shared::cta")
    read.one("b32")
    read.end(2)
    place = ins.operands[0]
    destination = e.call(_from_generic, e.address(place)) if generic else shared_operand(e, place)
    count = e.value(ins.operands[1], 32)
    name = e.temporary(e.call(alloc, "w", e.mask, destination, count, str(group), str(e.at)))
    e.park_if_none(name)


def _from_generic(address: Bits) -> Bits:
    if not isinstance(address, int):
        raise Fault("tmem", "tcgen05.alloc: the destination address differs between the lanes of the warp")
    return shared_address(address, generic=True, what="tcgen05.alloc")


def _lower_dealloc(ins: Instruction, e: Emitter) -> None:
    group, read = group_of(ins)
    read.each("sync", "aligned", "b32")
    address, count = (e.value(operand, 32) for operand in read.end(2))
    e.line(e.call(dealloc, "w", e.mask, address, count, str(group), str(e.at)))


def _lower_relinquish(ins: Instruction, e: Emitter) -> None:
    group, read = group_of(ins)
    read.each("sync", "aligned")
    read.end(0)
    e.line(e.call(relinquish, "w", str(group)))


LOWERINGS = {
    "tcgen05.alloc": _lower_alloc,
    "tcgen05.dealloc": _lower_dealloc,
    "tcgen05.relinquish_alloc_permit": _lower_relinquish,
}
BLOCKING = frozenset({"tcgen05.alloc"})
