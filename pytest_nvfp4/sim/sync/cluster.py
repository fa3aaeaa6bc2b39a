"""Cluster barriers, and addresses in other CTAs' shared memory.

Rules (PTX ISA, "barrier.cluster", "mapa", "getctarank", "exit"):

- The barrier completes when all threads of the cluster that have not exited have arrived; exiting threads release it.
- A thread arrives once per round, and again only after its ``.wait``. A second arrive without a wait is a fault; so is
  a wait without an arrive, because the thread would wait for itself.
- All lanes of the warp execute an ``.aligned`` instruction together; lanes of an unaligned one are counted one by one.
- ``mapa`` returns the same offset in the CTA of a rank, for shared addresses or, without a state space, generic ones.
  A rank outside the cluster gives an address that faults only when it is used: CUTLASS maps a barrier for every lane's
  number, and only the lanes below the cluster size arrive.

Memory ordering (``.release``, ``.relaxed``, ``.acquire``) has no effect on values here.

Counter: ``barrier.cluster.completions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, first, lanes
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp

_OFFSET = (1 << RANK_SHIFT) - 1
_NOWHERE = 255
"""Rank that represents all ranks too large for an address."""
_WITHOUT_RANK = (1 << 64) - 1 & ~(_NOWHERE << RANK_SHIFT)
"""Address bits that ``mapa`` preserves: the offset, and the window of a generic address."""


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """Parsed cluster barrier instruction; ``at`` is its index in the kernel."""

    what: str
    aligned: bool
    waits: bool
    at: int


class ClusterBarrier:
    """The barrier of one cluster.

    Attributes:
        arrived: Lanes that have arrived in the current round, by warp.
        completed: Lanes whose round is complete and that have not waited for it yet, by warp.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.waiters: list[Group] = []
        self.arrived: dict[Warp, int] = {}
        self.completed: dict[Warp, int] = {}
        for cta in cluster.ctas:
            cta.unit(_ExitHook)

    def waiting_for(self) -> str:
        """Describe the missing warps, for the report of a deadlock."""
        missing = []
        total = 0
        for cta in self.cluster.ctas:
            for warp in cta.warps:
                total += warp.live != 0
                lanes_missing = warp.live & ~self.arrived.get(warp, 0)
                if lanes_missing:
                    part = "" if lanes_missing == warp.live else f" lanes {lanes_missing:#010x}"
                    missing.append(f"rank {cta.rank} warp {warp.index}{part}")
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        return f"the cluster barrier, at which {len(missing)} of {total} warps have not arrived: " + (
            ", ".join(missing[:8]) + more
        )

    def arrive(self, w: Warp, mask: int, form: ClusterForm) -> bool:
        """Record the arrival of lanes. Raises Fault for lanes that have arrived before and not waited."""
        before = (self.arrived.get(w, 0) | self.completed.get(w, 0)) & mask
        if before:
            raise Fault(
                "cluster",
                f"{form.what}: lane {first(before)} has arrived at the cluster barrier before and has not waited since",
                hint="execute barrier.cluster.wait between two barrier.cluster.arrive",
            )
        machine = self.cluster.launch.machine
        if machine.monitor is not None:
            machine.monitor.barrier_arrived(w, mask, self, form.at)
        self.arrived[w] = self.arrived.get(w, 0) | mask
        machine.changes += 1
        self.check()
        return True

    def check(self) -> None:
        """Complete the barrier if all live lanes have arrived."""
        if not self.arrived:
            return
        for cta in self.cluster.ctas:
            for warp in cta.warps:
                if warp.live & ~self.arrived.get(warp, 0):
                    return
        for warp, mask in self.arrived.items():
            self.completed[warp] = self.completed.get(warp, 0) | mask
        self.arrived = {}
        launch = self.cluster.launch
        if launch.machine.monitor is not None:
            launch.machine.monitor.barrier_completed(self)
        launch.counters["barrier.cluster.completions"] += 1
        launch.machine.changes += 1
        wake_all(self)

    def wait(self, w: Warp, mask: int, form: ClusterForm) -> bool | None:
        """Return True if the lanes' round is complete, or None after the group was suspended."""
        done = self.completed.get(w, 0)
        if not mask & ~done:
            self.completed[w] = done & ~mask
            if (monitor := self.cluster.launch.machine.monitor) is not None:
                monitor.barrier_passed(w, mask, self, form.at)
            return True
        absent = mask & ~done & ~self.arrived.get(w, 0)
        if absent:
            raise Fault(
                "cluster",
                f"{form.what}: lane {first(absent)} waits at the cluster barrier and has not arrived at it",
                hint="execute barrier.cluster.arrive in the same thread before barrier.cluster.wait",
            )
        w.wait_for(self)
        return None


class _ExitHook:
    """Unit of a CTA that checks the cluster's barrier when lanes exit."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta

    def lanes_exited(self, w: Warp) -> None:  # noqa: ARG002 - the hook's signature
        """Complete the barrier if only the lanes that exit were missing."""
        self.cta.cluster.unit(ClusterBarrier).check()

    warp_exited = lanes_exited


def execute(w: Warp, mask: int, form: ClusterForm) -> bool | None:
    """Execute barrier.cluster.arrive or wait; return True, or None after the group was suspended."""
    if form.aligned and w.live & ~mask:
        raise Fault(
            "divergence",
            f"{form.what}: lanes {mask:#010x} execute it and lanes {w.live & ~mask:#010x} of the warp do not",
            hint="an aligned barrier must be executed by all lanes of the warp",
        )
    barrier = w.cta.cluster.unit(ClusterBarrier)
    return barrier.wait(w, mask, form) if form.waits else barrier.arrive(w, mask, form)


# ---- addresses ---------------------------------------------------------------------------------------------------


def map_address(mask: int, address: Bits, rank: Bits, generic: bool) -> Bits:
    """Execute mapa: return the same offset in the CTA of a rank; the address of a missing CTA faults when used."""
    if isinstance(address, int) and isinstance(rank, int):
        return _window(address, generic, "mapa") | min(rank, _NOWHERE) << RANK_SHIFT | address & _OFFSET
    for value in (address,) if isinstance(address, int) else {int(address[lane]) for lane in lanes(mask)}:
        _window(value, generic, "mapa")
    kind = np.uint64 if generic or getattr(address, "dtype", np.uint32) == np.uint64 else np.uint32
    ranks: NDArray[Any] = np.minimum(np.asarray(rank, kind), kind(_NOWHERE)) << kind(RANK_SHIFT)
    places: NDArray[Any] = np.asarray(address, kind)
    mapped: NDArray[Any] = ranks | places & kind(_WITHOUT_RANK if kind is np.uint64 else _WITHOUT_RANK & 0xFFFF_FFFF)
    return mapped


def _window(address: int, generic: bool, what: str) -> int:
    """Return the window bits of a shared or generic address. Raises Fault if it is not in shared memory."""
    high = address >> 32 << 32
    if high != (SHARED_WINDOW if generic else 0):
        raise Fault("out-of-bounds", f"{what}: {address:#x} is not an address of shared memory")
    return high


def rank_of(w: Warp, mask: int, address: Bits, generic: bool) -> Bits:
    """Execute getctarank: return the rank of the CTA whose shared memory contains an address."""
    size = len(w.cta.cluster.ctas)

    def rank_in(value: int) -> int:
        _window(value, generic, "getctarank")
        rank = (value & 0xFFFF_FFFF) >> RANK_SHIFT
        if rank >= size:
            raise Fault("cluster", f"getctarank: {value:#x} is in CTA rank {rank} of a cluster of {size}")
        return rank

    if isinstance(address, int):
        return rank_in(address)
    result = np.zeros(32, np.uint32)
    for lane in lanes(mask):
        result[lane] = rank_in(int(address[lane]))
    return result


# ---- lowering ----------------------------------------------------------------------------------------------------


def _barrier(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    kind = m.one("arrive", "wait")
    m.maybe(*(("release", "relaxed") if kind == "arrive" else ("acquire",)))
    aligned = m.has("aligned")
    m.end(0)
    form = e.constant(ClusterForm(ins.opcode, aligned, kind == "wait", e.at), "form")
    if kind == "arrive":
        e.line(e.call(execute, "w", e.mask, form))
    else:
        e.park_if_none(e.temporary(e.call(execute, "w", e.mask, form)))


def _address_width(m: OpcodeReader) -> tuple[int, bool]:
    """Take ``{.shared::cluster}.u32`` or ``.u64``: the width of the address, and whether it is generic."""
    generic = not m.has("shared::cluster")
    bits = int(m.one("u32", "u64")[1:])
    m.done()
    if generic and bits == 32:
        raise m.refuse("a generic address has 64 bits")
    return bits, generic


def _mapa(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    bits, generic = _address_width(m)
    result, address, rank = m.operands(3)
    call = e.call(map_address, e.mask, e.value(address, bits), e.value(rank, 32), str(generic))
    e.assign(result, call, bits)


def _getctarank(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    bits, generic = _address_width(m)
    result, address = m.operands(2)
    e.assign(result, e.call(rank_of, "w", e.mask, e.value(address, bits), str(generic)), 32)


LOWERINGS: Mapping[str, Lowering] = {"barrier.cluster": _barrier, "mapa": _mapa, "getctarank": _getctarank}
BLOCKING = frozenset({"barrier.cluster.wait"})
