"""Tensor maps in memory: finding and decoding one, and whether the copy engine sees it as it is.

How kernels change maps is in ``map_changes``. Rules (PTX ISA, "Tensor-map", "membar/fence"):

- A map is 128 bytes in the kernel's parameters, in constant or in global memory, aligned to 64 (CUDA driver API;
  ``.b1024`` objects that are replaced are aligned to 128). Its bit fields were measured through the driver on an
  H200; see ``driver.tensormap``.
- The copy engine reads maps through a proxy of its own. A map that the kernel changed must be released
  (``tensormap.cp_fenceproxy`` does, or ``fence.proxy.tensormap::generic.release``) and acquired by the CTA that uses
  it (``fence.proxy.tensormap::generic.acquire [map], 128``); else the engine may see the old map: a finding
  (``sync.fences.TensormapFences`` keeps the books).
- ``prefetch.tensormap`` is a hint; a map that is illegal when it is prefetched is a finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, lanes, value_in
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.sync.fences import Acquired, TensormapFences, TensormapWrites, Write
from pytest_nvfp4.sim.tma.tile import TmaTile, tile_of

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["ALIGN", "BYTES", "MapUse", "find_tile", "lower_prefetch", "use_map"]

BYTES = 128
ALIGN = 64
"""Bytes that a map's address is a multiple of, and that hold its fields."""


class UsedMaps:
    """The maps that a CTA has used, by address: bytes, acquire, modification and its scope when last checked."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.checked: dict[int, tuple[bytes, Acquired | None, Write | None, int]] = {}
        self.fences = cta.unit(TensormapFences)
        self.writes = cta.launch.unit(TensormapWrites).writes

    def check(self, address: int, data: bytes, *, what: str) -> None:
        """Report a map that was modified and not made visible to the copy engine; cheap while nothing changes."""
        write = self.writes.get(address)
        acquired = self.fences.acquired.get(address)
        if write is None and acquired is None:
            return
        state = (data, acquired, write, -1 if write is None else write.released)
        known = self.checked.get(address)
        if (
            known is None
            or known[1] is not acquired
            or known[2] is not write
            or known[3] != state[3]
            or known[0] != data
        ):
            self.fences.check_use(address, what=what)
            self.checked[address] = state


class MapUse:
    """A tensor map that was used: its place, and the bytes that it had.

    Args:
        raw: The map in place.
        data: Its bytes.
        modifiable: The CTA's ``UsedMaps`` if it lies in memory that can be written, else None.
    """

    __slots__ = ("address", "data", "modifiable", "raw")

    def __init__(self, address: int, raw: memoryview, data: bytes, modifiable: UsedMaps | None) -> None:
        self.address = address
        self.raw = raw
        self.data = data
        self.modifiable = modifiable

    def unchanged(self, *, what: str) -> bool:
        """Whether it has the bytes that it had. Reports a modification that was not made visible."""
        if self.modifiable is None:
            return True
        data = self.raw.tobytes()
        self.modifiable.check(self.address, data, what=what)
        return data == self.data


def find_tile(w: Warp, address: int, *, what: str) -> TmaTile:
    """The tile of the tensor map at a generic address. Raises what ``use_map`` does."""
    return use_map(w, address, what=what)[1]


def use_map(w: Warp, address: int, *, what: str) -> tuple[MapUse, TmaTile]:
    """A use of the tensor map at a generic address, and its tile.

    Raises:
        Fault: ``tensor map``, there is none or it is no legal one; ``unsupported``.
    """
    memory = w.cta.launch.machine.memory
    if address % ALIGN:
        raise Fault(
            "tensor map",
            f"{what}: the tensor map's address {address:#x} is not a multiple of {ALIGN}",
            hint="a CUtensorMap in the parameters or in global memory is aligned to 64 bytes",
        )
    try:
        region = memory.region(address, BYTES, write=False, what=what)
    except Fault as fault:
        raise Fault(
            "tensor map",
            f"{fault.message}: there is no tensor map",
            hint="a map lies in the kernel's parameters (grid constant), in constant or in global memory",
        ) from None
    offset = address - region.start
    raw = region.raw[offset : offset + ALIGN]
    data = raw.tobytes()
    descriptors = w.cta.unit(UsedMaps) if region.writable else None
    if descriptors is not None:
        descriptors.check(address, data, what=what)
    return MapUse(address, raw, data, descriptors), tile_of(data, what=what)


def lower_prefetch(ins: Instruction, e: Emitter) -> None:
    """Lower ``prefetch{.param,.const}.tensormap``."""
    read = OpcodeReader(ins, 1, ordered=False)
    read.one("tensormap")
    read.maybe("param", "const")
    read.done()
    e.line(e.call(prefetch_map, "w", e.mask, repr(ins.opcode), e.address(read.operands(1)[0])))


def prefetch_map(w: Warp, mask: int, what: str, address: Bits) -> None:
    """A hint: the maps must exist; one that is illegal at this time is reported. Raises Fault."""
    for one in dict.fromkeys(value_in(address, lane) for lane in lanes(mask)):
        try:
            find_tile(w, one, what=what)
        except Unsupported:
            pass
        except Fault as fault:
            w.cta.launch.report(fault.kind, fault.message, hint=fault.hint)
