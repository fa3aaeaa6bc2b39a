"""Sectors and bank conflicts of a warp's requests on the walk of a copy over a tile.

Layouts give the addresses of each lane; the PTX gives the width of an access (`insights.accesses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.insights.accesses import Access
from pytest_nvfp4.insights.copies import LANES, Walk, coordinates_of
from pytest_nvfp4.insights.model import Insight, Level
from pytest_nvfp4.layout import signals, warp
from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.text import plural

WIDEST_BYTES = 16
"""Widest access of a lane on every device; global memory has 32 bytes on sm_100 and later (PTX ISA, "st")."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of the first warp of a walk over the first tile.

    Attributes:
        width: Bytes of a lane.
        addresses: For each request, the address of each lane in bytes.
        access: The access of the PTX that has this width; None if the layouts alone give it.
    """

    width: int
    addresses: list[tuple[int, ...]]
    access: Access | None = None

    def __str__(self) -> str:
        counted = (
            f"{plural(len(self.addresses), 'request')} of {self.width} B a lane by the first warp in the first tile"
        )
        return f"{counted}, {self.access or 'as the layout allows'}"


def insights(walk: Walk, *, alone: bool, accesses: Sequence[Access] = ()) -> Iterator[Insight]:
    """Yield what the requests of a warp on a walk cost.

    Args:
        walk: The walk.
        alone: Whether no other copy fits the same partition.
        accesses: Accesses in the PTX that name the partition (`insights.accesses`). Each width of them counts; without
            any, the widest access that the layouts allow.
    """
    judge = _shared if walk.tensor.info.space == "smem" else _global
    for requests in requests_of(walk, accesses):
        found = judge(walk, requests)
        if not alone:
            found = replace(
                found,
                value=f"{found.value}; for this copy, if the kernel uses it: other copies match as well",
                level=min(found.level, Level.NOTE),
            )
        yield found


def requests_of(walk: Walk, accesses: Sequence[Access] = ()) -> list[Requests]:
    """Return the requests of the first warp on a walk, for each width of the accesses that the layouts allow.

    Without accesses, the result has the widest requests that the layouts allow. It is empty if none is known.
    """
    info = walk.tensor.info
    bits = dtype_bits(info.dtype)
    threads = walk.copy.thread_value.shape
    if not bits or not isinstance(threads, tuple):
        return []
    try:
        per_lane = [coordinates_of(walk.copy, walk.info, thread=at) for at in range(min(LANES, tree_size(threads[0])))]
        lanes = [coords for coords in per_lane if coords is not None]
        if len(lanes) < len(per_lane):
            return []
        by_width = {access.width: access for access in accesses if access.space == info.space}
        if by_width:
            found = [_requests(walk.info, lanes, width=width, bits=bits, access=by_width[width]) for width in by_width]
            return [requests for requests in found if requests is not None]
        allowed = walk.copy.bits or signals.vector_width(walk.part.info, max_bytes=WIDEST_BYTES).value.bits
        elements = max(1, min(allowed, 8 * WIDEST_BYTES) // bits)
        while elements >= 1:
            widest = _requests(walk.info, lanes, width=elements * bits // 8, bits=bits)
            if elements * bits % 8 == 0 and widest is not None:
                return [widest]
            elements //= 2
    except LayoutError:
        return []
    return []


def _requests(
    info: TypeInfo, lanes: list[list[tuple[int, ...]]], *, width: int, bits: int, access: Access | None = None
) -> Requests | None:
    """Return the requests of a width; None if a lane's values are not that many, contiguous and aligned."""
    elements = width * 8 // bits
    if not elements or len(lanes[0]) % elements:
        return None
    addresses = _addresses(info, lanes, elements=elements, bits=bits)
    return None if addresses is None else Requests(width, addresses, access)


def _addresses(
    info: TypeInfo, per_lane: list[list[tuple[int, ...]]], *, elements: int, bits: int
) -> list[tuple[int, ...]] | None:
    width = elements * bits // 8
    requests = []
    for start in range(0, len(per_lane[0]), elements):
        request = []
        for coords in per_lane:
            places = [info.layout(coord) for coord in coords[start : start + elements]] if info.layout else []
            first = places[0]
            if not isinstance(first, int) or places != list(range(first, first + elements)):
                return None
            (address,) = warp.addresses_at(info, [coords[start]])
            if address % width:
                return None
            request.append(address)
        requests.append(tuple(request))
    return requests


def _from(walk: Walk) -> str:
    substituted = f", with {walk.substituted}" if walk.substituted else ""
    return f"{walk.copy.name} over {walk.tensor.name}{substituted}"


def _shared(walk: Walk, requests: Requests) -> Insight:
    costs = [warp.bank_conflicts(request, width=requests.width) for request in requests.addresses]
    worst = max(costs, key=lambda cost: cost.ways)
    total, ideal = sum(cost.wavefronts for cost in costs), sum(cost.ideal for cost in costs)
    return Insight(
        "bank conflicts of a warp",
        f"{worst.ways} way{'s' if worst.ways > 1 else ''}; {total} wavefronts, {ideal} at least "
        f"({requests}; {_from(walk)})",
        Level.LOOK if worst.ways > 1 else Level.FINE,
        "enumerated",
        "lanes of one request that need different words of one bank wait for each other",
        "another thread order, a swizzle or a padded row" if worst.ways > 1 else "",
    )


def _global(walk: Walk, requests: Requests) -> Insight:
    costs = [warp.coalescing(request, width=requests.width) for request in requests.addresses]
    worst = min(costs, key=lambda cost: cost.sector_efficiency)
    share = worst.sector_efficiency
    good = share > 0.99
    return Insight(
        "sectors of a warp",
        f"{worst.sectors} sectors and {worst.lines} lines for {worst.useful_bytes} B: {share:.0%} of the bytes moved "
        f"are requested ({requests}; {_from(walk)})",
        Level.FINE if good else Level.LOOK if share <= 0.5 else Level.NOTE,
        "enumerated",
        "global memory moves in sectors of 32 bytes; the count is of one request, and a cache may join several "
        "requests to one sector",
        ""
        if good
        else "the mode that the lanes traverse: neighbours in a warp should be neighbours in memory (stage through "
        "shared memory and store by TMA, or transpose with stmatrix)",
    )
