"""Insights from the requests of a warp that walks a tile as a copy does: sectors and bank conflicts of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_nvfp4.insights.copies import LANES, Walk, coordinates_of
from pytest_nvfp4.insights.model import Insight, Level
from pytest_nvfp4.layout import signals, warp
from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import TypeInfo, dtype_bits
from pytest_nvfp4.text import plural

PLAIN_BYTES = 16
"""The widest access of a lane on every device; global memory has 32 on sm_100 and later (PTX ISA, "st")."""


def insights(walk: Walk, *, alone: bool, most_bytes: int = PLAIN_BYTES) -> Iterator[Insight]:
    """What the requests of a warp on this walk cost.

    Args:
        walk: The walk.
        alone: No other copy fits the same partition.
        most_bytes: The widest access of global memory that the machine code has.
    """
    bits = dtype_bits(walk.tensor.info.dtype)
    if bits is None:
        return
    try:
        width, requests = _requests(walk, bits, most_bytes)
    except LayoutError:
        return
    if not requests:
        return
    found = _shared(walk, width, requests) if walk.tensor.info.space == "smem" else _global(walk, width, requests)
    if not alone:
        found = replace(
            found, value=f"{found.value}; if it is this copy: others fit as well", level=min(found.level, Level.NOTE)
        )
    yield found


def requests_of(walk: Walk, *, most_bytes: int = PLAIN_BYTES) -> tuple[int, list[tuple[int, ...]]]:
    """The widest access of a thread in bytes (0: none), and for each of the first warp the address of each lane.

    ``most_bytes`` is the widest access of global memory that the machine code has; of shared memory it is 16.
    """
    bits = dtype_bits(walk.tensor.info.dtype)
    try:
        return _requests(walk, bits, most_bytes) if bits else (0, [])
    except LayoutError:
        return 0, []


def _requests(walk: Walk, bits: int, most_bytes: int) -> tuple[int, list[tuple[int, ...]]]:
    """The widest access of a thread in bytes, and for each access of the first warp the address of each lane."""
    threads = walk.copy.thread_value.shape
    assert isinstance(threads, tuple)
    lanes = min(LANES, tree_size(threads[0]))
    per_lane: list[list[tuple[int, ...]]] = []
    for lane in range(lanes):
        coords = coordinates_of(walk.copy, walk.info, thread=lane)
        if coords is None:
            return 0, []
        per_lane.append(coords)
    most = most_bytes if walk.tensor.info.space == "gmem" else PLAIN_BYTES
    allowed = walk.copy.bits or signals.vector_width(walk.part.info, max_bytes=most).value.bits
    elements = max(1, min(allowed, 8 * most) // bits)
    while elements >= 1:
        if elements * bits % 8 == 0 and len(per_lane[0]) % elements == 0:
            requests = _addresses(walk.info, per_lane, elements=elements, bits=bits)
            if requests is not None:
                return elements * bits // 8, requests
        elements //= 2
    return 0, []


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


def _counted(requests: list[tuple[int, ...]], width: int) -> str:
    return f"{plural(len(requests), 'request')} of {width} B a lane by the first warp in the first tile"


def _from(walk: Walk) -> str:
    substituted = f", with {walk.substituted}" if walk.substituted else ""
    return f"{walk.copy.name} over {walk.tensor.name}{substituted}"


def _shared(walk: Walk, width: int, requests: list[tuple[int, ...]]) -> Insight:
    costs = [warp.bank_conflicts(request, width=width) for request in requests]
    worst = max(costs, key=lambda cost: cost.ways)
    total, ideal = sum(cost.wavefronts for cost in costs), sum(cost.ideal for cost in costs)
    return Insight(
        "bank conflicts of a warp",
        f"{worst.ways} way{'s' if worst.ways > 1 else ''}; {total} wavefronts where {ideal} would do "
        f"({_counted(requests, width)}; {_from(walk)})",
        Level.LOOK if worst.ways > 1 else Level.FINE,
        "enumerated",
        "lanes of one request that need different words of one bank wait for each other",
        "another thread order, a swizzle or a padded row" if worst.ways > 1 else "",
    )


def _global(walk: Walk, width: int, requests: list[tuple[int, ...]]) -> Insight:
    costs = [warp.coalescing(request, width=width) for request in requests]
    worst = min(costs, key=lambda cost: cost.sector_efficiency)
    share = worst.sector_efficiency
    good = share > 0.99
    return Insight(
        "sectors of a warp",
        f"{worst.sectors} sectors and {worst.lines} lines for {worst.useful_bytes} B: {share:.0%} of the bytes moved "
        f"are asked for ({_counted(requests, width)}; {_from(walk)})",
        Level.FINE if good else Level.LOOK if share <= 0.5 else Level.NOTE,
        "enumerated",
        "global memory moves in sectors of 32 bytes; the count is of one request, and a cache may join several "
        "requests to one sector",
        ""
        if good
        else "which mode the lanes run along: neighbours in a warp should be neighbours in memory (stage through "
        "shared memory and store by TMA, or transpose with stmatrix)",
    )
