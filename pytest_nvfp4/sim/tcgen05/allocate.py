"""``tcgen05.alloc``, ``.dealloc``, ``.relinquish_alloc_permit`` (PTX ISA, "Tensor Memory Allocation and Management").

- A warp allocates a power of two of columns, 32 to 512, and gets the address of the first through shared memory; it
  waits while no such block of columns is free. TMEM belongs to the CTA here: what a neighbour on the same SM holds is
  not modelled.
- Blocks lie at multiples of their size, lowest first.
- After ``relinquish_alloc_permit`` no warp of the CTA may allocate.
- ``dealloc`` takes the address and the columns of one allocation, exactly; everything must be freed before the kernel
  ends (a finding ``tmem`` at exit).
- With ``.cta_group::2`` a warp of each CTA of the pair takes part: the first waits for the other's, with the same
  number of columns, and both get the same address. ``dealloc`` may return before its peer's; it does here.
- All tcgen05 instructions of a kernel have one ``.cta_group``.

Counters: ``tmem.allocations``, ``tmem.columns`` (of all of them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.monitor import WRITE
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.sync.addresses import shared_address
from pytest_nvfp4.sim.tcgen05.group import expect, group_of, peer_of, same_group
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, Tmem

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Group, Warp

__all__ = ["BLOCKING", "LOWERINGS", "Allocator", "alloc", "dealloc", "relinquish"]


class Allocator:
    """The allocations of one CTA: ``cta.unit(Allocator)``. It is also what a warp waits for that wants columns."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.waiters: list[Group] = []
        self.blocks: dict[int, tuple[int, int]] = {}
        """First column: number of columns, number of the warp that took them."""
        self.taken: dict[int, int] = {}
        """First column: the instruction of its last allocation."""
        self.relinquished = False
        self.offer: tuple[int, int] | None = None
        """A pair's allocation that waits for the other CTA: columns asked for, number of the warp."""
        self.granted: int | None = None
        """A pair's allocation that the other CTA completed: the first column."""
        self.serial = 0

    def waiting_for(self) -> str:
        """For the report of a deadlock."""
        if self.offer is not None:
            return f"tcgen05.alloc.cta_group::2 of {self.offer[0]} columns by warp {self.offer[1]} waits for its peer"
        held = ", ".join(f"[{c}, {c + n}) by warp {w}" for c, (n, w) in sorted(self.blocks.items())) or "none"
        return f"free TMEM columns (held: {held})"

    def wake(self) -> None:
        """Let waiting warps look again."""
        waiters, self.waiters = self.waiters, []
        for group in waiters:
            group.wake()

    def fits(self, count: int) -> list[int]:
        """Where a block of columns could go."""
        owner = self.cta.unit(Tmem).owner
        return [c for c in range(0, COLUMNS, count) if owner.count(0, c, c + count) == count]

    def take(self, column: int, count: int, warp: int) -> None:
        """Make an allocation."""
        self.serial = self.serial % 255 + 1
        self.cta.unit(Tmem).take(column, count, self.serial)
        self.blocks[column] = (count, warp)
        self.cta.launch.counters["tmem.allocations"] += 1
        self.cta.launch.counters["tmem.columns"] += count

    def at_exit(self) -> None:
        """Report columns that were never freed."""
        launch = self.cta.launch
        for column, (count, warp) in sorted(self.blocks.items()):
            at = self.taken.get(column)
            launch.report(
                "tmem",
                f"the CTA ended, and TMEM columns [{column}, {column + count}), allocated by warp {warp}, are not free",
                hint="every tcgen05.alloc needs its tcgen05.dealloc; without it the next CTA on the SM waits forever",
                where=launch.where_cta(self.cta) if at is None else launch.where(self.cta.warps[warp], at),
            )


def alloc(w: Warp, mask: int, destination: Bits, count: Bits, group: int, at: int) -> int | None:
    """Allocate; the first column's address goes to shared memory. None while the warp must wait.

    Raises:
        Fault: a count that is not legal, an allocation after the permit was given up, a bad destination.
    """
    what = f"tcgen05.alloc.cta_group::{group}"
    cta = w.cta
    same_group(cta, group, what=what)
    columns = _one(count, mask, what, "number of columns")
    if not 32 <= columns <= COLUMNS or columns & (columns - 1):
        raise Fault(
            "tmem",
            f"{what}: {columns} columns; it must be a power of two from 32 to {COLUMNS}",
            hint="round the columns up; an accumulator of 128 x 128 in fp32 takes 128, its scale factors some more",
        )
    unit = cta.unit(Allocator)
    if unit.relinquished:
        raise Fault(
            "tmem",
            f"{what}: the CTA gave up its permit to allocate (tcgen05.relinquish_alloc_permit)",
            hint="allocate everything before the permit is given up",
        )
    address = _one(destination, mask, what, "destination address")
    index = cta.shared.index(address, 4, what=what, align=4)
    if group == 1:
        places = unit.fits(columns)
        if not places:
            w.wait_for(unit)
            return None
        column = places[cta.launch.machine.asynchronous.pick(len(places))]
        unit.take(column, columns, w.index)
    else:
        found = _alloc_pair(w, unit, columns, what)
        if found is None:
            return None
        column = found
    unit.taken[column] = at
    cta.shared.write(index, np.frombuffer(column.to_bytes(4, "little"), np.uint8), what=what)
    if cta.launch.machine.monitor is not None:
        cta.launch.machine.monitor.tmem_allocated(w, at, column, columns)
        cta.launch.machine.monitor.shared_accessed(w, at, cta.shared, index, 4, WRITE)
    return column


def _alloc_pair(w: Warp, unit: Allocator, columns: int, what: str) -> int | None:
    if unit.granted is not None:
        column, unit.granted, unit.offer = unit.granted, None, None
        return column
    peer = peer_of(w.cta, what=what).unit(Allocator)
    if unit.offer is None:
        if peer.offer is None or peer.granted is not None:
            unit.offer = (columns, w.index)
            w.wait_for(unit)
            return None
        if peer.offer[0] != columns:
            raise Fault(
                "tmem",
                f"{what}: {columns} columns here, and the peer CTA asks for {peer.offer[0]}",
                hint="both CTAs of a pair allocate the same number of columns, in the same order",
            )
        common = sorted(set(unit.fits(columns)) & set(peer.fits(columns)))
        if not common:
            w.wait_for(unit)
            return None
        column = common[w.cta.launch.machine.asynchronous.pick(len(common))]
        peer.take(column, columns, peer.offer[1])
        unit.take(column, columns, w.index)
        peer.granted = column
        peer.wake()
        return column
    w.wait_for(unit)
    return None


def dealloc(w: Warp, mask: int, address: Bits, count: Bits, group: int, at: int) -> None:
    """Free an allocation. Raises Fault if the address and count are not those of one."""
    what = f"tcgen05.dealloc.cta_group::{group}"
    cta = w.cta
    same_group(cta, group, what=what)
    column = _one(address, mask, what, "address")
    columns = _one(count, mask, what, "number of columns")
    unit = cta.unit(Allocator)
    block = unit.blocks.get(column)
    if block is None or block[0] != columns:
        held = ", ".join(f"{n} at {c:#x}" for c, (n, _) in sorted(unit.blocks.items())) or "none"
        raise Fault(
            "tmem",
            f"{what}: {columns} columns at address {column:#010x}, which is no allocation (columns at address: {held})",
            hint="free with the address that tcgen05.alloc gave and the same number of columns, once",
        )
    del unit.blocks[column]
    if cta.launch.machine.monitor is not None:
        cta.launch.machine.monitor.tmem_freed(w, at, column, columns)
    cta.unit(Tmem).free(column, columns, warp=w.index, at=at)
    unit.wake()
    if group == 2:
        peer_of(cta, what=what, exited=True).unit(Allocator).wake()


def relinquish(w: Warp, group: int) -> None:
    """Give up the permit to allocate."""
    same_group(w.cta, group, what=f"tcgen05.relinquish_alloc_permit.cta_group::{group}")
    w.cta.unit(Allocator).relinquished = True


def _one(value: Bits, mask: int, what: str, name: str) -> int:
    one = uniform(value, mask)
    if one is None:
        raise Fault("tmem", f"{what}: the {name} differs between the lanes of the warp")
    return one


def _lower_alloc(ins: Instruction, e: Emitter) -> None:
    group, rest = group_of(ins)
    if rest not in (("sync", "aligned", "shared::cta", "b32"), ("sync", "aligned", "b32")):
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(rest)}")
    expect(ins, 2)
    destination = e.address(ins.operands[0])
    if "shared::cta" not in rest:
        destination = e.call(_from_generic, destination)
    count = e.value(ins.operands[1], 32)
    name = e.temporary(e.call(alloc, "w", e.mask, destination, count, str(group), str(e.at)))
    e.park_if_none(name)


def _from_generic(address: Bits) -> Bits:
    if not isinstance(address, int):
        raise Fault("tmem", "tcgen05.alloc: the destination address differs between the lanes of the warp")
    return shared_address(address, generic=True, what="tcgen05.alloc")


def _lower_dealloc(ins: Instruction, e: Emitter) -> None:
    group, rest = group_of(ins)
    if rest != ("sync", "aligned", "b32"):
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(rest)}")
    expect(ins, 2)
    address, count = (e.value(operand, 32) for operand in ins.operands)
    e.line(e.call(dealloc, "w", e.mask, address, count, str(group), str(e.at)))


def _lower_relinquish(ins: Instruction, e: Emitter) -> None:
    group, rest = group_of(ins)
    if rest != ("sync", "aligned"):
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(rest)}")
    expect(ins, 0)
    e.line(e.call(relinquish, "w", str(group)))


LOWERINGS = {
    "tcgen05.alloc": _lower_alloc,
    "tcgen05.dealloc": _lower_dealloc,
    "tcgen05.relinquish_alloc_permit": _lower_relinquish,
}
BLOCKING = frozenset({"tcgen05.alloc"})
