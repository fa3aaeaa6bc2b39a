"""What all copies have in common: operands by lane, targets, barriers, and delivery by the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, InFlight, SharedMemory
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier, complete_tx, resolve

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["InboundCopy", "Target", "by_lane", "signal_rank", "signed", "submit_inbound", "targets"]

_OFFSET = (1 << RANK_SHIFT) - 1
_SHARED_BITS = 0xFFFF_FFFF

CopyAction = Callable[[SharedMemory, int], None]
"""Puts data into a shared memory, at an index."""
Target = tuple[Cta, int, Mbarrier]
"""A CTA that data go to, the index in its shared memory, and the barrier that their bytes are counted at."""


def signed(value: int) -> int:
    """32 bits as a signed number."""
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def by_lane(
    mask: int, values: tuple[Any, ...], *, what: str, fatal: bool, report: Callable[..., None]
) -> list[tuple[int, tuple[int, ...]]]:
    """The operands of each active lane: ``(lane, operands)``.

    Lanes that issue the very same copy are a mistake (``elect.sync`` is missing): every one of them moves the data and
    counts the bytes. Lanes whose operands differ each issue a copy of their own.

    Raises:
        Fault: ``multi-lane``, if ``fatal``; else it is reported.
    """
    if not mask & (mask - 1):
        lane = mask.bit_length() - 1
        return [(lane, tuple([v if v.__class__ is int else int(v[lane]) for v in values]))]
    active = lanes(mask)
    rows = [(lane, tuple(v if v.__class__ is int else int(v[lane]) for v in values)) for lane in active]
    if len(active) > 1 and len({row[1] for row in rows}) < len(rows):
        which = "all" if all(row[1] == rows[0][1] for row in rows) else "some"
        said = f"{what}: {len(active)} lanes are active, and {which} of them issue the same copy"
        hint = "one lane must issue it: elect_one, or a comparison with the thread index"
        if fatal:
            raise Fault("multi-lane", said, hint=hint)
        report("multi-lane", said, hint=hint)
    return rows


def signal_rank(destination: int, barrier: int, group: int) -> int:
    """The rank of the CTA whose barrier is signalled for data that go to ``destination``.

    With ``.cta_group::2`` the barrier is that of the destination or of its pair's other CTA: the one with the parity of
    the CTA where the barrier operand lies (PTX ISA, "cp.async.bulk.tensor"; NVIDIA's 2-CTA kernels rest on it).
    """
    return (destination & ~1) | (barrier & 1) if group == 2 else destination


def targets(
    cta: Cta,
    address: int,
    barrier: int,
    *,
    size: int,
    align: int,
    cluster: bool,
    multicast: int | None,
    group: int,
    what: str,
) -> list[Target]:
    """Where a copy to shared memory goes.

    Args:
        address, barrier: Shared addresses.
        size: Bytes from the destination that must be in bounds.
        cluster: Whether the destination is ``.shared::cluster``.
        multicast: The CTA mask, if the copy is multicast: the same offset in every CTA of the mask.
        group: 1 or 2 for ``.cta_group``; 0 for none.

    Raises:
        Fault: out of bounds, misaligned, another CTA's memory where it must be the own, no mbarrier, no such CTA.
    """
    if address > _SHARED_BITS or barrier > _SHARED_BITS:
        wide = address if address > _SHARED_BITS else barrier
        raise Fault("out-of-bounds", f"{what}: {wide:#x} is no shared address, which has 32 bits")
    if not cluster:
        index = cta.shared.index(address, size, what=what, align=align)
        _free(cta, index, size, what)
        if group != 2 or barrier >> RANK_SHIFT == cta.rank:
            return [(cta, index, resolve(cta, barrier, cluster=False, what=what))]
        _pair(cta.rank, barrier, what)
        return [(cta, index, resolve(cta, barrier, cluster=True, what=what))]
    if multicast is None:
        owner = cta.owner_of(address, what=what)
        index = owner.shared.index(address, size, what=what, align=align)
        _free(owner, index, size, what)
        if barrier >> RANK_SHIFT != owner.rank:
            if group != 2:
                raise Fault(
                    "mbarrier",
                    f"{what}: the data go to CTA rank {owner.rank} of the cluster and the mbarrier lies in rank "
                    f"{barrier >> RANK_SHIFT}",
                    hint="destination and barrier must lie in one CTA unless .cta_group::2 is used",
                )
            _pair(owner.rank, barrier, what)
        return [(owner, index, resolve(cta, barrier, cluster=True, what=what))]
    if not multicast:
        raise Fault("multicast", f"{what}: the CTA mask is 0, so that the data go nowhere")
    found: list[Target] = []
    parity = barrier >> RANK_SHIFT
    for rank in range(multicast.bit_length()):
        if multicast >> rank & 1:
            owner = cta.peer(rank, what=f"{what} (CTA mask {multicast:#06x})")
            index = owner.shared.index((address & _OFFSET) | rank << RANK_SHIFT, size, what=what, align=align)
            _free(owner, index, size, what)
            where = (barrier & _OFFSET) | signal_rank(rank, parity, group) << RANK_SHIFT
            found.append((owner, index, resolve(cta, where, cluster=True, what=what)))
    return found


def _pair(rank: int, barrier: int, what: str) -> None:
    if rank >> 1 != barrier >> RANK_SHIFT >> 1:
        raise Fault(
            "mbarrier",
            f"{what}: the mbarrier lies in CTA rank {barrier >> RANK_SHIFT}, which is not of the pair of rank {rank}",
            hint="with .cta_group::2 the barrier is that of the destination's CTA or of its pair's other CTA",
        )


def _free(cta: Cta, index: int, size: int, what: str) -> None:
    """Raise Fault if a barrier lies in the destination; report a copy that is still on its way there."""
    shared = cta.shared
    if shared.opaque:
        shared.refuse_opaque(index, index + size, what=what)
    for start, length, copy in shared.in_flight.values():
        if start < index + size and index < start + length:
            cta.launch.report(
                "in-flight",
                f"{what}: writes bytes [{index}, {index + size}) of shared memory while {copy} to bytes "
                f"[{start}, {start + length}) is under way",
                hint="the stage was given away before it was filled: look at the wait on its full barrier",
            )
            return


class InboundCopy:
    """Data on their way to shared memory. Called once, when the schedule lets them arrive.

    Until then the destination counts as not written, so that whoever reads it early is told.

    Args:
        copy: Puts the data into a shared memory, at an index.
        count: Bytes that complete at each barrier.
    """

    __slots__ = ("at", "copy", "count", "done", "mask", "targets", "warp", "what")

    def __init__(
        self, warp: Warp, lane: int, at: int, where: list[Target], copy: CopyAction, *, count: int, what: str
    ) -> None:
        self.warp = warp
        self.mask = 1 << lane
        self.at = at
        self.targets = where
        self.copy = copy
        self.count = count
        self.what = what
        self.done = False

    def __call__(self) -> None:
        """The data arrive."""
        self.done = True
        launch = self.warp.cta.launch
        for cta, _, _ in self.targets:
            if cta.exited == len(cta.warps):
                launch.report(
                    "in-flight",
                    f"{launch.say(self.at)}: its data may arrive after the CTA that they go to has ended",
                    hint="wait for every copy before the end of the CTA, also for those that nothing uses",
                )
        try:
            for cta, index, barrier in self.targets:
                if cta.shared.in_flight:
                    cta.shared.in_flight.pop(self, None)
                self.copy(cta.shared, index)
                barrier.brought = self.warp, self.at
                complete_tx(barrier, self.count, who=self.what)
        except Fault as fault:
            if fault.where is None:
                fault.where = launch.where(self.warp, self.at, mask=self.mask)
            raise
        launch.machine.changes += 1


def submit_inbound(
    arrival: InboundCopy, *, size: int, order: NDArray[np.intp] | None = None, overwrites: bool = True
) -> None:
    """Hand an arrival to the schedule. Arrivals are not ordered among each other.

    Args:
        size: Bytes of the destination.
        order: The 16-byte units of the destination that are written, if not all.
        overwrites: Whether what was there is lost; a reduction needs it.
    """
    arrival.warp.cta.launch.machine.asynchronous.submit(arrival, arrival, what=arrival.what)
    if not arrival.done and overwrites:
        said = arrival.warp.cta.launch.say(arrival.at)
        for cta, index, _ in arrival.targets:
            cta.shared.in_flight[arrival] = InFlight(index, size, said)
            written = cta.shared.written[index : index + size]
            if order is None:
                written[:] = False
            else:
                written.reshape(-1, 16)[order] = False
