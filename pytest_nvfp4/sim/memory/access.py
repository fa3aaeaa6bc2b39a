"""Width, element count and state space of a load, store or atomic; address windows.

Generic addresses (PTX ISA, "Generic Addressing"): shared memory from ``SHARED_WINDOW`` up, local memory from
``LOCAL_WINDOW`` up to it, global memory below. ``.shared::cta`` addresses are in the CTA's own shared memory,
``.shared::cluster`` ones in that of any CTA of the cluster.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW

READ, WRITE, ATOMIC = range(3)
"""What an access does to its bytes."""

_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}
ITEMS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),  # numpy copies complex128 items as two machine words; V16 would take a memcpy each
    32: np.dtype("V32"),
}
"""Type of an array item that holds a lane's whole access, by bytes."""

Values = lanes.Bits | tuple[lanes.Bits, ...]
"""A register's value, or those of a vector's registers."""


class Access:
    """Description of a memory access, with what the inner loops derive from it.

    Args:
        opcode: For messages.
        space: ``global``, ``shared`` (the CTA's own), ``cluster`` (shared::cluster), ``local`` or ``generic``.
        bits: Width of an element: 8 to 128.
        count: Elements per lane: 1, 2, 4 or 8.
        signed: Whether a loaded element is sign-extended.
        register: Width of the destination registers; 0 for a store.
        read_only: Whether the load takes the non-coherent path, whose bytes no thread may write during the launch.
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
        make = partial(Access, signed=self.signed, register=self.register, read_only=self.read_only)
        return make, (self.opcode, self.space, self.bits, self.count)


def misaligned(access: Access, address: int, lane: int | None, place: str) -> Fault:
    """Return the fault of an address that is not a multiple of the access's size."""
    owner = "" if lane is None else f" of lane {lane}"
    return Fault(
        "misaligned",
        f"{access.opcode}: address {address:#x}{owner} is not a multiple of {access.size} ({place})",
        hint=f"an access of {access.count} x {access.bits} bits must be aligned to {access.size} bytes",
    )


def by_value(value: lanes.Bits, mask: int) -> list[tuple[int, int]]:
    """Split lanes by a value: each value with its lanes."""
    common = lanes.uniform(value, mask)
    if common is not None:
        return [(common, mask)]
    active = lanes.bools(mask)
    return [(int(each), lanes.bits_of((value == each) & active)) for each in np.unique(value[active])]  # type: ignore[index]


def by_rank(address: NDArray[Any], mask: int) -> list[tuple[int, int]]:
    """Split shared::cluster addresses by CTA: each rank with its lanes."""
    return by_value(address >> address.dtype.type(RANK_SHIFT), mask)


def by_space(address: NDArray[Any], mask: int, table: Any) -> list[tuple[Any, int, NDArray[Any]]]:
    """Split generic addresses by window: the entry of ``table`` for the space, the lanes, their addresses."""
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


def join(parts: list[tuple[int, Values]], bits: int) -> Values:
    """Merge the results of disjoint lane masks into values of ``bits`` bits."""
    _, whole = parts[0]
    for mask, values in parts[1:]:
        if isinstance(whole, tuple):
            assert isinstance(values, tuple)
            whole = tuple(lanes.merge(mask, new, old, bits) for new, old in zip(values, whole, strict=True))
        else:
            whole = lanes.merge(mask, values, whole, bits)  # type: ignore[arg-type]
    return whole
