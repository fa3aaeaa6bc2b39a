"""Use of tensor maps in memory: lookup, decoding, and visibility to the copy engine.

``map_changes`` describes how kernels change maps. Rules (PTX ISA, "Tensor-map", "membar/fence"):

- A map is 128 bytes in the kernel's parameters, in constant or in global memory, aligned to 64 (CUDA driver API;
  ``.b1024`` objects that are replaced are aligned to 128). Its bit fields were measured through the driver on an
  H200; see ``driver.tensormap``.
- The copy engine reads maps through the tensormap proxy. A map that the kernel changed must be released
  (by ``tensormap.cp_fenceproxy`` or ``fence.proxy.tensormap::generic.release``) and acquired by the CTA that uses it
  (``fence.proxy.tensormap::generic.acquire [map], 128``); otherwise the engine may read the old map: a finding
  (``sync.fences.TensormapFences`` records releases and acquires).
- ``prefetch.tensormap`` is a hint; a map that is illegal when it is prefetched is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.fences import AcquiredMap, MapWrite, TensormapFences, TensormapWrites
from pytest_nvfp4.sim.tma.tile import TmaTile, tile_of

BYTES = 128
ALIGN = 64
"""Alignment of a map in bytes, and the number of its bytes that hold fields."""


class _MapState(NamedTuple):
    """State of a map when its visibility was last checked; ``released`` is the scope, -1 for an unmodified map."""

    data: bytes
    acquired: AcquiredMap | None
    write: MapWrite | None
    released: int


class UsedMaps:
    """Maps that a CTA has used, and their states when last checked: ``cta.unit(UsedMaps)``."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._checked: dict[int, _MapState] = {}
        self._fences = cta.unit(TensormapFences)
        self._writes = cta.launch.unit(TensormapWrites).writes

    def check(self, address: int, data: bytes, *, what: str) -> None:
        """Report a modified map that was not made visible to the copy engine. Repeats the check on a change only."""
        write = self._writes.get(address)
        acquired = self._fences.acquired.get(address)
        if write is None and acquired is None:
            return
        released = -1 if write is None else write.released
        last = self._checked.get(address)
        if (
            last is None
            or last.acquired is not acquired
            or last.write is not write
            or last.released != released
            or last.data != data
        ):
            self._fences.check_use(address, what=what)
            self._checked[address] = _MapState(data, acquired, write, released)


@dataclass(slots=True, eq=False)
class MapUse:
    """A tensor map that was used, with the bytes that it had.

    Args:
        raw: View of the map in memory.
        data: Its bytes at the time.
        modifiable: The CTA's ``UsedMaps`` if the map lies in writable memory, else None.
    """

    address: int
    raw: memoryview
    data: bytes
    modifiable: UsedMaps | None

    def unchanged(self, *, what: str) -> bool:
        """Return whether the bytes are unchanged; reports a modification that was not made visible."""
        if self.modifiable is None:
            return True
        data = self.raw.tobytes()
        self.modifiable.check(self.address, data, what=what)
        return data == self.data


def use_map(w: Warp, address: int, *, what: str) -> tuple[MapUse, TmaTile]:
    """Return the use of the tensor map at a generic address, and its tile.

    Raises:
        Fault: ``tensor map``: there is none, or it is illegal.
        Unsupported: the map has a feature that is not modelled.
    """
    memory = w.cta.launch.machine.memory
    if address % ALIGN:
        raise Fault(
            "tensor map",
            f"{what}: the tensor map's address {address:#x} is not a multiple of {ALIGN}",
            hint=f"align a CUtensorMap in the parameters or in global memory to {ALIGN} bytes",
        )
    try:
        region = memory.region(address, BYTES, write=False, what=what)
    except Fault as fault:
        raise Fault(
            "tensor map",
            f"{fault.message}: there is no tensor map",
            hint="put the map in the kernel's parameters (grid constant), in constant or in global memory",
        ) from None
    offset = address - region.start
    raw = region.raw[offset : offset + ALIGN]
    data = raw.tobytes()
    used_maps = w.cta.unit(UsedMaps) if region.writable else None
    if used_maps is not None:
        used_maps.check(address, data, what=what)
    return MapUse(address, raw, data, used_maps), tile_of(data, what=what)


def lower_prefetch(ins: Instruction, e: Emitter) -> None:
    """Lower ``prefetch{.param,.const}.tensormap``."""
    read = OpcodeReader(ins, 1, ordered=False)
    read.one("tensormap")
    read.maybe("param", "const")
    read.done()
    e.line(e.call(prefetch_map, "w", e.mask, repr(ins.opcode), e.address(read.operands(1)[0])))


def prefetch_map(w: Warp, mask: int, what: str, address: Bits) -> None:
    """Execute a prefetch hint: report maps that do not exist or are illegal."""
    for map_address in dict.fromkeys(value_in(address, lane) for lane in lanes(mask)):
        try:
            use_map(w, map_address, what=what)
        except Unsupported:
            pass
        except Fault as fault:
            w.cta.launch.report_fault(fault)
