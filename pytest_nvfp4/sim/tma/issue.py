"""Steps that all copies share: operands by lane, targets, barriers, and completion by the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.finding import OUTSIDE
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import bools, lanes
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, InFlight, SharedMemory
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import complete_tx, resolve
from pytest_nvfp4.sim.tma.box import TmaBox, outside_text

SPACES = ("global", "shared::cta", "shared::cluster")
"""State spaces of a copy: the opcode names the destination's, then the source's."""
_OFFSET = (1 << RANK_SHIFT) - 1

CopyAction = Callable[[SharedMemory, int], None]
"""Writes a copy's data to a shared memory, at an index."""


def signed(value: int) -> int:
    """Interpret 32 bits as a signed number."""
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def report_outside(w: Warp, boxes: Sequence[TmaBox], coordinates: tuple[int, ...], *, what: str) -> None:
    """Report a copy whose boxes lie wholly outside their tensor, if that is requested."""
    launch = w.cta.launch
    if not launch.machine.reports_outside or any(box.region is not None for box in boxes):
        return
    tensor_map = boxes[0].tile.map
    region = launch.machine.memory.find(tensor_map.address)
    text = outside_text(coordinates, "" if region is None else region.name, tensor_map.dims)
    launch.report(
        OUTSIDE,
        f"{what}: the box {text}, so that a load fills in zeros, and a store writes nothing",
        hint="its coordinates, which count elements, those of the contiguous dimension first; right where the grid or "
        "the last tile is larger than the tensor",
    )


def by_lane(
    mask: int, values: tuple[Any, ...], *, what: str, fatal: bool, report: Callable[..., None] | None
) -> list[tuple[int, tuple[int, ...]]]:
    """Return ``(lane, operands)`` for each active lane.

    Lanes whose operands differ each issue a copy of their own. Lanes that issue the same copy are usually a mistake (a
    missing ``elect.sync``): each of them moves the data and counts the bytes.

    Args:
        report: Reports the mistake if it is not fatal; None if the instruction allows it.

    Raises:
        Fault: ``multi-lane``, if ``fatal``.
    """
    if not mask & (mask - 1):
        lane = mask.bit_length() - 1
        return [(lane, tuple([v if v.__class__ is int else int(v[lane]) for v in values]))]
    active, chosen = lanes(mask), bools(mask)
    by_operand = [[v] * len(active) if v.__class__ is int else v[chosen].tolist() for v in values]
    rows = list(zip(active, zip(*by_operand, strict=True), strict=True))
    if (fatal or report is not None) and len(active) > 1 and len({row[1] for row in rows}) < len(rows):
        which = "all" if all(row[1] == rows[0][1] for row in rows) else "some"
        message = f"{what}: {len(active)} lanes are active, and {which} of them issue the same copy"
        hint = "issue it from one lane: elect_one, or a comparison with the thread index"
        if fatal:
            raise Fault("multi-lane", message, hint=hint)
        if report is not None:
            report("multi-lane", message, hint=hint)
    return rows


def check_aligned(address: int, align: int, what: str) -> None:
    """Raise Fault if a global address is not a multiple of ``align`` bytes."""
    if address % align:
        raise Fault("misaligned", f"{what}: global address {address:#x} is not a multiple of {align}")


def signal_rank(destination: int, barrier: int, group: int) -> int:
    """Return the rank of the CTA whose barrier is signalled for data that go to ``destination``.

    With ``.cta_group::2`` it is the CTA of the destination's pair that has the parity of the CTA where the barrier
    operand lies (PTX ISA, "cp.async.bulk.tensor"; NVIDIA's 2-CTA kernels depend on it).
    """
    return (destination & ~1) | (barrier & 1) if group == 2 else destination


def targets(
    cta: Cta, address: int, barrier: int, *, size: int, align: int, cluster: bool, multicast: int | None, group: int,
    what: str,
) -> list[CopyTarget]:  # fmt: skip
    """Return the targets of a copy to shared memory.

    Args:
        cta: The CTA that issues the copy.
        address, barrier: Shared addresses.
        size: Bytes from the destination that must be in bounds.
        align: Required alignment of the destination in bytes.
        cluster: Whether the destination is ``.shared::cluster``.
        multicast: The CTA mask, if the copy is multicast: the same offset in every CTA of the mask.
        group: 1 or 2 for ``.cta_group``; 0 for none.

    Raises:
        Fault: out of bounds, misaligned, another CTA's memory where it must be the issuer's, no mbarrier, no such CTA.
    """
    if not cluster:
        index = _destination(cta, address, size, align, what)
        other = group == 2 and barrier >> RANK_SHIFT != cta.rank
        if other:
            _check_pair(cta.rank, barrier, what)
        return [CopyTarget(cta, index, resolve(cta, barrier, cluster=other, what=what))]
    if multicast is None:
        owner = cta.owner_of(address, what=what)
        index = _destination(owner, address, size, align, what)
        if barrier >> RANK_SHIFT != owner.rank:
            if group != 2:
                raise Fault(
                    "mbarrier",
                    f"{what}: the data go to CTA rank {owner.rank} of the cluster, but the mbarrier lies in rank "
                    f"{barrier >> RANK_SHIFT}",
                    hint="put destination and barrier in one CTA, or use .cta_group::2",
                )
            _check_pair(owner.rank, barrier, what)
        return [CopyTarget(owner, index, resolve(cta, barrier, cluster=True, what=what))]
    if not multicast:
        raise Fault("multicast", f"{what}: the CTA mask is 0, so that no CTA receives the data")
    receivers: list[CopyTarget] = []
    parity = barrier >> RANK_SHIFT
    for rank in range(multicast.bit_length()):
        if multicast >> rank & 1:
            owner = cta.peer(rank, what=f"{what} (CTA mask {multicast:#06x})")
            index = _destination(owner, (address & _OFFSET) | rank << RANK_SHIFT, size, align, what)
            where = (barrier & _OFFSET) | signal_rank(rank, parity, group) << RANK_SHIFT
            receivers.append(CopyTarget(owner, index, resolve(cta, where, cluster=True, what=what)))
    return receivers


def _check_pair(rank: int, barrier: int, what: str) -> None:
    if rank >> 1 != barrier >> RANK_SHIFT >> 1:
        raise Fault(
            "mbarrier",
            f"{what}: the mbarrier lies in CTA rank {barrier >> RANK_SHIFT}, which is not in the pair of rank {rank}",
            hint="with .cta_group::2 use a barrier of the destination's CTA or of the other CTA of its pair",
        )


def _destination(cta: Cta, address: int, size: int, align: int, what: str) -> int:
    """Return the index of a destination. Raise Fault if a barrier lies in it; report another copy in flight to it."""
    shared = cta.shared
    index = shared.index(address, size, what=what, align=align)
    if shared.opaque:
        shared.refuse_opaque(index, index + size, what=what)
    for start, length, copy in shared.in_flight.values():
        if start < index + size and index < start + length:
            cta.launch.report(
                "in-flight",
                f"{what}: writes bytes [{index}, {index + size}) of shared memory while {copy} to bytes "
                f"[{start}, {start + length}) is in flight",
                hint="the stage was released before it was filled: check the wait on its full barrier",
            )
            break
    return index


@dataclass(slots=True, eq=False)
class InboundCopy:
    """A copy to shared memory in flight. The scheduler calls it once, when the data arrive.

    Until then the destination is marked as not written, so that an early read is a fault.

    Args:
        copy: Writes the data to a shared memory, at an index.
        count: Bytes that complete at each barrier.
    """

    warp: Warp
    lane: int
    at: int
    targets: list[CopyTarget]
    copy: CopyAction
    _: KW_ONLY
    count: int
    what: str
    done: bool = False

    def __call__(self) -> None:
        """Write the data to every target and complete their bytes at the barriers."""
        self.done = True
        launch = self.warp.cta.launch
        for cta, _, _ in self.targets:
            if cta.exited == len(cta.warps):
                launch.report(
                    "in-flight",
                    f"{launch.place(self.at)}: its data may arrive after the CTA that receives them has ended",
                    hint="wait for every copy before the end of the CTA, even if its data are not used",
                )
        try:
            for cta, index, barrier in self.targets:
                if cta.shared.in_flight:
                    cta.shared.in_flight.pop(self, None)
                self.copy(cta.shared, index)
                barrier.brought = self.warp, self.at
                complete_tx(barrier, self.count, who=self.what, source=barrier.brought)
        except Fault as fault:
            if fault.where is None:
                fault.where = launch.where(self.warp, self.at, mask=1 << self.lane)
            raise
        launch.machine.changes += 1


def submit_inbound(
    copy: InboundCopy, *, size: int, units: NDArray[np.intp] | None = None, overwrites: bool = True
) -> None:  # fmt: skip
    """Submit a copy to the scheduler. Copies are not ordered among each other (PTX ISA, "Async proxy").

    Args:
        size: Bytes of the destination.
        units: The 16-byte units of the destination that are written, if not all.
        overwrites: Whether the old values are lost; False for a reduction, which reads them.
    """
    machine = copy.warp.cta.launch.machine
    if (detail := copy.warp.cta.launch.detail) is not None:
        for cta, index, _ in copy.targets:
            detail.copied("load", cta, copy.at, index, size)
    if machine.barrier_log is not None:
        for _, index, barrier in copy.targets:
            machine.barrier_log.add("copy", barrier, (copy.warp, copy.at), copy.count, slot=index)
    machine.asynchronous.submit(copy, copy, what=copy.what)
    if not copy.done and overwrites:
        place = copy.warp.cta.launch.place(copy.at)
        for cta, index, _ in copy.targets:
            cta.shared.in_flight[copy] = InFlight(index, size, place)
            written = cta.shared.written[index : index + size]
            if units is None:
                written[:] = False
            else:
                written.reshape(-1, 16)[units] = False
