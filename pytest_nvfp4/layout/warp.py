"""Cost of one memory request of a warp: shared-memory bank conflicts, and sectors of global memory.

Addresses are in **bytes**, and a pointer's swizzle acts on them. Shared memory has 32 banks of 4 bytes; a request of 8
bytes a lane is served a half warp at a time and one of 16 bytes a quarter warp at a time, so that each pass moves at
most 128 bytes. Two lanes conflict when they need different words of one bank; lanes that need the same word share it.
Global memory moves in sectors of 32 bytes, four to a cache line of 128.

All numbers are enumerated from the addresses, not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.difference import AddressedLayout
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.offsets import domain_size
from pytest_nvfp4.layout.sameness import Comparable, Method, addressed
from pytest_nvfp4.layout.tree import Tree, render_tree

WARP = 32
BANKS = 32
BANK_BYTES = 4
SECTOR_BYTES = 32
LINE_BYTES = 128
WIDTHS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class BankConflicts:
    """Cost of one shared-memory request of a warp.

    ``ways`` is the worst serialisation of a pass (1: no conflict), ``wavefronts`` the number of passes of the request,
    ``ideal`` that number without conflicts.
    """

    ways: int
    wavefronts: int
    ideal: int
    method: Method = "enumerated"


@dataclass(frozen=True, slots=True)
class Coalescing:
    """Cost of one global-memory request of a warp: sectors and cache lines touched, and bytes requested."""

    sectors: int
    lines: int
    useful_bytes: int
    method: Method = "enumerated"

    @property
    def sector_efficiency(self) -> float:
        """Requested bytes over bytes of the sectors, 0 to 1."""
        return self.useful_bytes / (self.sectors * SECTOR_BYTES)

    @property
    def line_efficiency(self) -> float:
        """Requested bytes over bytes of the cache lines, 0 to 1."""
        return self.useful_bytes / (self.lines * LINE_BYTES)


def bank_conflicts(addresses: Sequence[int], *, width: int) -> BankConflicts:
    """Return the conflicts of one request in which each lane accesses ``width`` bytes (1 to 16) at its byte address.

    ``addresses`` has one entry per active lane, in lane order, at most 32. Raises `LayoutError` for other widths, more
    lanes, or an address that is not a multiple of ``width`` (the hardware faults on those).
    """
    _check(addresses, width=width, most=16)
    lanes = WARP * BANK_BYTES // max(width, BANK_BYTES)
    passes = [_ways(addresses[at : at + lanes], width) for at in range(0, len(addresses), lanes)]
    return BankConflicts(ways=max(passes), wavefronts=sum(passes), ideal=len(passes))


def _ways(addresses: Sequence[int], width: int) -> int:
    words = {word for at in addresses for word in range(at // BANK_BYTES, (at + width - 1) // BANK_BYTES + 1)}
    banks = [0] * BANKS
    for word in words:
        banks[word % BANKS] += 1
    return max(banks)


def coalescing(addresses: Sequence[int], *, width: int) -> Coalescing:
    """Return sectors and lines of one request in which each lane accesses ``width`` bytes (1 to 32) at its address.

    Bytes that several lanes request count once. Raises `LayoutError` as `bank_conflicts` does.
    """
    _check(addresses, width=width, most=32)
    starts = set(addresses)
    return Coalescing(
        sectors=len({at // SECTOR_BYTES for at in starts}),
        lines=len({at // LINE_BYTES for at in starts}),
        useful_bytes=len(starts) * width,
    )


def _check(addresses: Sequence[int], *, width: int, most: int) -> None:
    if width not in WIDTHS or width > most:
        raise LayoutError(f"access of {width} bytes a lane: use a power of two from 1 to {most}")
    if not 1 <= len(addresses) <= WARP:
        raise LayoutError(f"{len(addresses)} addresses: a request of a warp has 1 to {WARP}, one per active lane")
    misaligned = next((at for at in addresses if at % width), None)
    if misaligned is not None:
        raise LayoutError(f"address {misaligned} is not a multiple of the {width} bytes accessed; the hardware faults")


def addresses_at(value: Comparable, coords: Iterable[Tree], *, bits: int | None = None) -> tuple[int, ...]:
    """Return the byte address of each coordinate (or index), from a base at 0, after the pointer's swizzle.

    ``bits`` of an element default to those of the type. Raises `LayoutError` if they are unknown or an element begins
    inside a byte, and `DynamicLayoutError` if an address depends on a ``?``.
    """
    found = _with_width(value, bits)
    return tuple(_address(found, coord) for coord in coords)


def _with_width(value: Comparable, bits: int | None) -> AddressedLayout:
    found = addressed(value)
    width = bits or found.bits
    if found.layout is None:
        raise LayoutError(f"{value}: a type without a layout has no addresses")
    if width is None:
        raise LayoutError(f"{value}: byte addresses need the bits of an element; give bits=")
    return replace(found, bits=width)


def _address(found: AddressedLayout, coord: Tree) -> int:
    address, inside = divmod(found.bit_address(coord), 8)
    if inside:
        raise LayoutError(
            f"coordinate {render_tree(coord)} begins at bit {inside} of a byte; access whole bytes, several elements "
            f"of {found.bits} bits at a time"
        )
    return address


def warp_requests(
    value: Comparable, *, vector: int = 1, bits: int | None = None, warp: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return the requests of one warp in a thread-value layout: for each vector of values, the address of each lane.

    Mode 0 counts threads and the other modes the values of a thread; ``vector`` values make one access. Raises
    `LayoutError` if the values of a vector are not contiguous in a lane, and as `addresses_at` does.
    """
    found = _with_width(value, bits)
    width = found.bits or 0
    if found.layout is None or not isinstance(found.layout.shape, tuple):
        raise LayoutError(f"{value}: a thread-value layout has threads in mode 0 and values in the others")
    threads = tree_size(found.layout.shape[0], where=value)
    count = domain_size(found.layout) // threads
    lanes = range(warp * WARP, min(threads, (warp + 1) * WARP))
    if not lanes or count % vector:
        raise LayoutError(
            f"{value}: no warp {warp} among {threads} threads, or {vector} does not divide {count} values"
        )
    requests = []
    for start in range(0, count, vector):
        for lane in lanes:
            places = [found.bit_address(lane + (start + step) * threads) for step in range(vector)]
            if places != list(range(places[0], places[0] + vector * width, width)):
                raise LayoutError(
                    f"{value}: values {start} to {start + vector - 1} of thread {lane} are not contiguous; "
                    "access fewer at a time"
                )
        requests.append(tuple(_address(found, lane + start * threads) for lane in lanes))
    return tuple(requests)
