"""Fences: thread fences, proxy fences, and the fences of tensor maps that a kernel modifies.

``fence`` reports every fence to the machine's monitor (the race detector), if there is one. Values never depend on a
fence here, and the monitor finds missing ones, except for those of tensor maps:

After the grid has modified a tensor map in global memory, TMA may use it only after the writer's
``fence.proxy.tensormap::generic.release`` (or ``tensormap.cp_fenceproxy``, which includes one) and the using CTA's
``fence.proxy.tensormap::generic.acquire`` of its 128 bytes, both with a scope that includes writer and user (PTX ISA,
"membar, fence" and "tensormap.cp_fenceproxy"). ``TensormapFences.check_use`` reports a use that violates this. Tracked
modifications are ``tensormap.replace`` and ``cp_fenceproxy`` on global memory (``TensormapWrites.modified``), and any
change of the bytes after the CTA's last acquire. Plain stores before a map's first acquire are not tracked.

Counters: ``fence.<kind>``, the opcode without its root (of instructions, not lanes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.warp import Warp

MAP_BYTES = 128
_FIELD_BYTES = 64
"""The bytes of a map that hold fields; a kernel may leave the others unwritten (``tma.map_changes``)."""
_SCOPES = ("cta", "cluster", "gpu", "sys")


def fence(w: Warp, mask: int, kind: str, at: int) -> None:
    """Execute a fence; ``kind`` is its opcode without the root (``acq_rel.gpu``, ``proxy.async.shared::cta`` ...)."""
    launch = w.cta.launch
    launch.counters[f"fence.{kind}"] += 1
    if (monitor := launch.machine.monitor) is not None:
        monitor.fence(w, mask, kind, at)


@dataclass(slots=True)
class MapWrite:
    """The last modification of a tensor map: its CTA and warp, and the scope of its release (-1: not released)."""

    cta: Cta
    who: str
    released: int = -1


@dataclass(frozen=True, slots=True)
class AcquiredMap:
    """A tensor map at the time of an acquire: its fields, its last modification, and the scope of the acquire."""

    data: bytes
    write: MapWrite | None
    scope: str


class TensormapWrites:
    """Tensor maps in global memory that a grid has modified: ``launch.unit(TensormapWrites)``."""

    def __init__(self, launch: Grid) -> None:
        self.launch = launch
        self.writes: dict[int, MapWrite] = {}

    def modified(self, w: Warp, address: int, *, released: str | None = None) -> None:
        """Record a warp's modification of the map at an address.

        Args:
            released: Scope, if the instruction also releases the map (``tensormap.cp_fenceproxy``).
        """
        scope = -1 if released is None else _SCOPES.index(released)
        who = f"CTA {w.cta.index} warp {w.index}"
        self.writes[address & ~(MAP_BYTES - 1)] = MapWrite(w.cta, who, scope)

    def release(self, w: Warp, scope: str) -> None:
        """Record a warp's release fence, which covers the modifications of its CTA."""
        for write in self.writes.values():
            if write.cta is w.cta:
                write.released = max(write.released, _SCOPES.index(scope))


class TensormapFences:
    """Tensor maps that a CTA has acquired: ``cta.unit(TensormapFences)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.acquired: dict[int, AcquiredMap] = {}
        """Maps by address."""

    def acquire(self, address: int, scope: str) -> None:
        """Record an acquire of the 128 bytes at a global address. Raises Fault if they are not in global memory."""
        if address & ~0xFFFF_FFFF == SHARED_WINDOW:
            raise Fault(
                "tensormap", f"fence.proxy.tensormap acquire: {address:#x} is in shared memory and must be in global"
            )
        if address % MAP_BYTES:
            raise Fault("misaligned", f"fence.proxy.tensormap acquire: {address:#x} is not a multiple of {MAP_BYTES}")
        launch, what = self.cta.launch, "fence.proxy.tensormap acquire"
        launch.machine.memory.region(address, MAP_BYTES, write=False, what=what)
        data = launch.machine.memory.read(address, _FIELD_BYTES, what=what).tobytes()
        self.acquired[address] = AcquiredMap(data, launch.unit(TensormapWrites).writes.get(address), scope)

    def check_use(self, address: int, *, what: str) -> None:
        """Report a use by TMA of a map that the grid modified and this CTA did not properly acquire.

        Args:
            address: Generic address of the map. Maps in the parameters and unmodified maps pass.
            what: Instruction that uses it, for the message.
        """
        launch = self.cta.launch
        write = launch.unit(TensormapWrites).writes.get(address)
        known = self.acquired.get(address)
        if write is None and known is None:
            return
        if known is None or known.write is not write:
            by = f" by {write.who}" if write is not None else ""
            late = "" if known is None else " after this CTA's last acquire"
            problem = f"was modified{by}{late}, and this CTA has not acquired it since"
        elif launch.machine.memory.read(address, _FIELD_BYTES, what=what).tobytes() != known.data:
            problem = "was changed after this CTA's last acquire"
        elif write is None:
            return
        else:
            # The scope must include writer and user: the same CTA, the same cluster, or the device.
            needed = 0 if write.cta is self.cta else 1 if write.cta.cluster is self.cta.cluster else 2
            least = f"the scope must be at least .{_SCOPES[needed]}"
            if write.released < needed:
                fenced = "never released" if write.released < 0 else f"released with scope .{_SCOPES[write.released]}"
            elif _SCOPES.index(known.scope) < needed:
                fenced = f"acquired with scope .{known.scope}"
            else:
                return
            problem = f"was modified by {write.who} and {fenced}; {least}"
        near = launch.machine.memory.find(address)
        launch.report(
            "tensormap",
            f"{what}: the tensor map at {near.place(address) if near is not None else f'{address:#x}'} {problem}",
            hint="after the map is written: tensormap.cp_fenceproxy or a release proxy fence in the writer, then "
            "fence.proxy.tensormap::generic.acquire.gpu [map], 128 in every CTA that uses it",
        )


def acquire_map(w: Warp, mask: int, address: Bits, scope: str) -> None:
    """Execute fence.proxy.tensormap::generic.acquire of each lane's map."""
    fences = w.cta.unit(TensormapFences)
    for place in (address,) if isinstance(address, int) else {int(address[lane]) for lane in lanes(mask)}:
        fences.acquire(place, scope)


def release_map(w: Warp, scope: str) -> None:
    """Execute fence.proxy.tensormap::generic.release."""
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
