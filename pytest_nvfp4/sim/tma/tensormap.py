"""Tensor maps in memory: finding and decoding one, changing its fields, and making a change seen by the copy engine.

Rules (PTX ISA, "Tensor-map", "tensormap.replace", "tensormap.cp_fenceproxy", "membar/fence"):

- A map is 128 bytes in the kernel's parameters, in constant or in global memory, aligned to 64 (CUDA driver API;
  ``.b1024`` objects that are replaced are aligned to 128). Its bit fields were measured through the driver on an
  H200; see ``toolchain.tensormap``.
- ``tensormap.replace`` changes one field, in global memory or in the CTA's own shared memory. ``rank`` takes the rank
  less one; sizes and boxes are given in elements, strides in bytes; ``elemtype`` and its kin take the ISA's codes
  (table "Tensormap new_val validity"). That the map holds sizes and boxes less one, and strides without their low 4
  bits, is the measured format. Code 4 of ``swizzle_mode`` (96 B), and the padded sub-byte types 14 and 15, are
  unsupported: how the map holds them was not measured.
- The copy engine reads maps through a proxy of its own. A map that the kernel changed must be released
  (``tensormap.cp_fenceproxy`` does, or ``fence.proxy.tensormap::generic.release``) and acquired by the CTA that uses
  it (``fence.proxy.tensormap::generic.acquire [map], 128``); else the engine may see the old map: a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.tma.tile import Tile, tile_of

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["descriptor"]

BYTES = 128
ALIGN = 64


def descriptor(w: Warp, address: int, *, what: str) -> Tile:
    """The tile of the tensor map at a generic address.

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
    return tile_of(bytes(region.raw[offset : offset + ALIGN]), what=what)
