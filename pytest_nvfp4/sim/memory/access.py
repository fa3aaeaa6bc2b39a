"""What a load, store or atomic accesses, as its opcode says it; address windows.

Generic addresses (PTX ISA, "Generic Addressing"): the shared window from ``SHARED_WINDOW`` on, local memory from
``LOCAL_WINDOW``, all else global. ``.shared::cta`` addresses are the CTA's own; ``.shared::cluster`` ones any CTA's
of the cluster.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW

__all__ = ["ITEMS", "Access", "Values", "by_rank", "by_space", "misaligned"]


_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}
ITEMS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),  # 16 bytes that numpy moves whole and fast
    32: np.dtype("V32"),
}

Values = lanes.Bits | tuple[lanes.Bits, ...]


class Access:
    """What an opcode accesses.

    Args:
        opcode: For messages.
        space: ``global``, ``shared`` (the CTA's own), ``cluster`` (shared::cluster), ``local`` or ``generic``.
        bits: Width of an element: 8 to 128.
        count: Elements a lane: 1, 2, 4 or 8.
        signed: Sign-extend a loaded element.
        register: Width of the destination registers; 0 for a store.
        read_only: A load of the non-coherent path: nothing of this launch may have written the bytes.
    """

    __slots__ = (
        "bits", "count", "elements", "item", "known", "load", "loads", "opcode", "pack", "read_only", "register",
        "signed", "size", "space", "store", "stores", "unpack",
    )  # fmt: skip

    def __init__(
        self,
        opcode: str,
        space: str,
        bits: int,
        count: int = 1,
        *,
        signed: bool = False,
        register: int = 0,
        read_only: bool = False,
    ) -> None:
        self.opcode = opcode
        self.space = space
        self.bits = bits
        self.count = count
        self.signed = signed
        self.register = register
        self.read_only = read_only
        self.size = bits * count // 8
        wide = bits == 128
        self.elements = 2 * count if wide else count
        code = "Q" if wide else _CODES[bits]
        plain = struct.Struct(f"<{self.elements}{code}")
        self.unpack = struct.Struct(f"<{self.elements}{code.lower() if signed else code}").unpack_from
        self.pack = plain.pack_into
        self.known = plain.unpack(b"\1" * self.size)
        self.item = ITEMS[self.size]
        self.loads = ("shared.load", self.size)
        self.stores = ("shared.store", self.size)
        self.load = ("global.load", self.size)
        self.store = ("global.store", self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.opcode, self.space, self.bits, self.count, self.signed, self.register, self.read_only)


def _restore(opcode: str, space: str, bits: int, count: int, signed: bool, register: int, read_only: bool) -> Access:
    return Access(opcode, space, bits, count, signed=signed, register=register, read_only=read_only)


def misaligned(access: Access, address: int, lane: int | None, said: str) -> Fault:
    """The fault of an address that is not a multiple of the access's size."""
    who = "" if lane is None else f" of lane {lane}"
    return Fault(
        "misaligned",
        f"{access.opcode}: address {address:#x}{who} is not a multiple of {access.size} ({said})",
        hint=f"an access of {access.count} x {access.bits} bits must be aligned to {access.size} bytes",
    )


def by_rank(address: NDArray[Any], mask: int) -> list[tuple[int, int]]:
    """CTA ranks of shared::cluster addresses, with the lanes of each."""
    ranks = address >> address.dtype.type(RANK_SHIFT)
    active = lanes.bools(mask)
    return [(int(rank), lanes.bits_of((ranks == rank) & active)) for rank in np.unique(ranks[active])]


def by_space(address: NDArray[Any], mask: int, table: Any) -> list[tuple[Any, int, NDArray[Any]]]:
    """Generic addresses by window: the function of the space, the lanes, their addresses."""
    shared = lanes.bits_of(address >= np.uint64(SHARED_WINDOW)) & mask
    local = lanes.bits_of(address >= np.uint64(LOCAL_WINDOW)) & mask & ~shared
    parts = []
    if rest := mask & ~shared & ~local:
        parts.append((table["global"], rest, address))
    if shared:
        parts.append((table["cluster"], shared, address & np.uint64(0xFFFF_FFFF)))
    if local:
        parts.append((table["local"], local, address))
    return parts
