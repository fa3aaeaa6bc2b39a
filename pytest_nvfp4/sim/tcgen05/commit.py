"""``tcgen05.commit``: an arrival at an mbarrier once the earlier asynchronous tcgen05 operations are complete.

PTX ISA, "tcgen05.commit": one arrival, after all operations that the issuing thread initiated before. Here it follows
all operations of the CTA's pipe, or of the pair's, which is stricter in order only; a commit of operations that other
threads initiated is a finding (see ``issuers``). With ``.multicast::cluster`` the barrier at the same offset of every
CTA whose bit is set in the 16-bit mask gets the arrival. One thread issues.

Counter: ``tcgen05.commits``.
"""

from __future__ import annotations

from functools import partial

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, pick
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.addresses import shared_address
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier, arrive, resolve
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.group import group_of, single_lane

_OFFSET = (1 << RANK_SHIFT) - 1


def commit(w: Warp, mask: int, address: Bits, targets: Bits | None, group: int, generic: bool, at: int) -> None:
    """Issue one commit; ``targets`` is the CTA mask of a multicast. Raises Fault."""
    what = f"tcgen05.commit.cta_group::{group}"
    if mask & (mask - 1):
        single_lane(w, mask, what=what)
    core = w.cta.unit(TensorCore)
    if core.pipe.group != group:
        core.pipe.set_group(group, what=what)
    # Triton 3.6 gives a shared address without a state space.
    place = shared_address(pick(address, mask), generic=generic, what=what, narrow=True)
    if targets is None:
        barriers = [resolve(w, place, cluster=True, what=what)]
    else:
        chosen = pick(targets, mask) & 0xFFFF
        if not chosen:
            raise Fault("cluster", f"{what}: the CTA mask of the multicast is 0")
        barriers = [
            resolve(w, rank << RANK_SHIFT | place & _OFFSET, cluster=True, what=what)
            for rank in range(16)
            if chosen >> rank & 1
        ]
    core.issuers.committed(w, mask, what=what)
    core.counters["tcgen05.commits"] += 1
    if core.machine.monitor is not None:
        core.machine.monitor.tensor_committed(w, at, core.pipe.queue, tuple(barriers))
    if (log := core.machine.barrier_log) is not None:
        for barrier in barriers:
            log.add("commit", barrier, (w, at), 1)
    core.submit(core.pipe.queue, partial(_arrive, barriers, w), what=what)


def _arrive(barriers: list[Mbarrier], w: Warp) -> None:
    for barrier in barriers:
        barrier.committers[w] = None
        arrive(barrier, 1, who=f"tcgen05.commit by warp {w.index}")


def _lower(ins: Instruction, e: Emitter) -> None:
    group, read = group_of(ins)
    read.one("mbarrier::arrive::one")
    generic = not read.has("shared::cluster")
    multicast = read.has("multicast::cluster")
    read.one("b64")
    barrier, *masks = read.end(2 if multicast else 1)
    targets = e.value(masks[0], 16) if multicast else "None"
    address = e.address(barrier)
    e.line(e.call(commit, "w", e.mask, address, targets, str(group), str(generic), str(e.at)))


LOWERINGS = {"tcgen05.commit": _lower}
