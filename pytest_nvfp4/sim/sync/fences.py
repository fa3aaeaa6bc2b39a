"""Fences: thread fences, proxy fences, and what is known of tensor maps that a kernel modifies.

Every fence goes through ``fence``, which tells the machine's monitor (the race detector) if there is one. Values never
depend on a fence here; what a missing fence could do on a device is the monitor's business, with one exception:

A tensor map in global memory that the grid has modified may be used by TMA only after the writer's
``fence.proxy.tensormap::generic.release`` (or ``tensormap.cp_fenceproxy``, which holds one) and the using CTA's
``fence.proxy.tensormap::generic.acquire`` of its 128 bytes, both of a scope that spans writer and user (PTX ISA,
"membar, fence" and "tensormap.cp_fenceproxy"). ``TensormapFences.check_use`` reports a use that breaks this. Known
modifications: ``tensormap.replace`` and ``cp_fenceproxy`` on global memory (``TensormapWrites.modified``), and any
change of the bytes after the CTA's last acquire. Plain stores before a map's first acquire are not noticed.

Counters: ``fence.<kind>``, the opcode without its root (of instructions, not lanes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.cta import Cta

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "Acquired", "TensormapFences", "TensormapWrites", "Write", "fence"]

MAP_BYTES = 128
_SCOPES = ("cta", "cluster", "gpu", "sys")


def fence(w: Warp, mask: int, kind: str, at: int) -> None:
    """A fence of a kind (``acq_rel.gpu``, ``proxy.async.shared::cta``, ``mbarrier_init.release.cluster`` ...)."""
    launch = w.cta.launch
    launch.counters[f"fence.{kind}"] += 1
    monitor = launch.machine.monitor
    if monitor is not None:
        monitor.fence(w, mask, kind, at)


@dataclass(slots=True)
class Write:
    """The last modification of a tensor map: by whom, and up to which scope it was released."""

    cta: Cta
    who: str
    released: int = -1


Acquired = tuple[bytes, Write | None, str]
"""A tensor map as an acquire saw it: its bytes, the modification, the scope."""


class TensormapWrites:
    """The tensor maps in global memory that a grid has modified: ``launch.unit(TensormapWrites)``."""

    def __init__(self, launch: Grid) -> None:
        self.launch = launch
        self.writes: dict[int, Write] = {}

    def modified(self, w: Warp, address: int, *, released: str | None = None) -> None:
        """A warp has modified the map at an address.

        Args:
            released: The scope, if the instruction released it too (``tensormap.cp_fenceproxy``).
        """
        scope = -1 if released is None else _SCOPES.index(released)
        who = f"CTA {w.cta.index} warp {w.index}"
        self.writes[address & ~(MAP_BYTES - 1)] = Write(w.cta, who, scope)

    def release(self, w: Warp, scope: str) -> None:
        """A warp's release fence: covers what its CTA has modified."""
        for write in self.writes.values():
            if write.cta is w.cta:
                write.released = max(write.released, _SCOPES.index(scope))


class TensormapFences:
    """The tensor maps that a CTA has acquired: ``cta.unit(TensormapFences)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.acquired: dict[int, Acquired] = {}
        """By address."""

    def acquire(self, address: int, scope: str) -> None:
        """Note an acquire of the 128 bytes at a global address. Raises Fault if they are not global memory."""
        if address & ~0xFFFF_FFFF == SHARED_WINDOW:
            raise Fault(
                "tensormap", f"fence.proxy.tensormap acquire of the shared address {address:#x}: it must be global"
            )
        if address % MAP_BYTES:
            raise Fault("misaligned", f"fence.proxy.tensormap acquire: {address:#x} is not a multiple of {MAP_BYTES}")
        launch = self.cta.launch
        seen = launch.machine.memory.read(address, MAP_BYTES, what="fence.proxy.tensormap acquire").tobytes()
        self.acquired[address] = (seen, launch.unit(TensormapWrites).writes.get(address), scope)

    def check_use(self, address: int, *, what: str) -> None:
        """Report a use by TMA of a map that the grid modified and this CTA did not properly acquire.

        Args:
            address: Generic address of the map; maps in the parameters or untouched ones pass.
            what: Who uses it, for the message.
        """
        launch = self.cta.launch
        write = launch.unit(TensormapWrites).writes.get(address)
        known = self.acquired.get(address)
        if write is None and known is None:
            return
        near = launch.machine.memory.find(address)
        name = near.say(address) if near is not None else f"{address:#x}"
        hint = "after the map is written: tensormap.cp_fenceproxy or a release proxy fence in the writer, then "
        hint += "fence.proxy.tensormap::generic.acquire.gpu [map], 128 in every CTA that uses it"
        if known is None or known[1] is not write:
            assert write is not None or known is not None
            by = f" by {write.who}" if write is not None else ""
            late = "" if known is None else " after this CTA's last acquire"
            launch.report(
                "tensormap",
                f"{what}: the tensor map at {name} was modified{by}{late}, and this CTA has not acquired it since",
                hint=hint,
            )
            return
        seen, _, scope = known
        if launch.machine.memory.read(address, MAP_BYTES, what=what).tobytes() != seen:
            launch.report(
                "tensormap", f"{what}: the tensor map at {name} was changed after this CTA's last acquire", hint=hint
            )
        elif write is not None:
            needed = 0 if write.cta is self.cta else 1 if write.cta.cluster is self.cta.cluster else 2
            if write.released < needed:
                found = "never released" if write.released < 0 else f"released with scope .{_SCOPES[write.released]}"
                launch.report(
                    "tensormap",
                    f"{what}: the tensor map at {name} was modified by {write.who} and {found}; the scope must be at "
                    f"least .{_SCOPES[needed]}",
                    hint=hint,
                )
            elif _SCOPES.index(scope) < needed:
                launch.report(
                    "tensormap",
                    f"{what}: the tensor map at {name} was modified by {write.who} and acquired with scope .{scope} "
                    f"only; it must be at least .{_SCOPES[needed]}",
                    hint=hint,
                )


def acquire_map(w: Warp, mask: int, address: Bits, scope: str) -> None:
    """fence.proxy.tensormap::generic.acquire of each lane's map."""
    fences = w.cta.unit(TensormapFences)
    if isinstance(address, int):
        fences.acquire(address, scope)
        return
    for one in {int(address[lane]) for lane in lanes(mask)}:
        fences.acquire(one, scope)


def release_map(w: Warp, scope: str) -> None:
    """fence.proxy.tensormap::generic.release."""
    w.cta.launch.unit(TensormapWrites).release(w, scope)


# ---- lowering ----------------------------------------------------------------------------------------------------


def _emit(ins: Instruction, e: Emitter) -> None:
    kind = ".".join(ins.parts[1:])
    e.line(e.call(fence, "w", e.mask, repr(kind), str(e.at)))


def _restricted(m: OpcodeReader, sense: str) -> bool:
    """Takes ``.sync_restrict::shared::{cta,cluster}.cluster``, which fits one sense each."""
    place = "sync_restrict::shared::cta" if sense == "release" else "sync_restrict::shared::cluster"
    if not m.has(place):
        return False
    m.one("cluster")
    m.done()
    return True


def _fence(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.operands(0)
    if m.has("mbarrier_init"):
        m.one("release")
        m.one("cluster")
        m.done()
    else:
        sense = m.maybe("sc", "acq_rel", "acquire", "release")
        if sense not in ("acquire", "release") or not _restricted(m, sense):
            m.one(*_SCOPES)
            m.done()
    _emit(ins, e)


def _membar(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins)
    m.operands(0)
    m.one("cta", "gl", "sys")
    m.done()
    _emit(ins, e)


def _proxy(ins: Instruction, e: Emitter) -> None:
    m = OpcodeReader(ins, 2)
    if m.has("tensormap::generic"):
        sense = m.one("acquire", "release")
        scope = m.one(*_SCOPES)
        m.done()
        if sense == "release":
            m.operands(0)
            _emit(ins, e)
            e.line(e.call(release_map, "w", repr(scope)))
            return
        place, size = m.operands(2)
        if not isinstance(size, Immediate) or size.value != MAP_BYTES:
            raise Unsupported(f"{ins.opcode}: the size must be {MAP_BYTES}")
        _emit(ins, e)
        e.line(e.call(acquire_map, "w", e.mask, e.address(place), repr(scope)))
        return
    m.operands(0)
    if m.has("async::generic"):
        if not _restricted(m, m.one("acquire", "release")):
            raise Unsupported(f"{ins.opcode}: .sync_restrict is missing")
    elif m.has("async"):
        m.maybe("global", "shared::cta", "shared::cluster")
        m.done()
    else:
        m.one("alias")
        m.done()
    _emit(ins, e)


LOWERINGS: Mapping[str, Lowering] = {
    "fence": _fence,
    "fence.proxy": _proxy,
    "membar": _membar,
    "membar.proxy": _proxy,
}
