"""Epilogue of a traced kernel from TMEM to global memory, counted from its layouts and the widths in its PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_nvfp4.insights import copies
from pytest_nvfp4.insights.accesses import Access, accesses_of
from pytest_nvfp4.insights.copies import Walk
from pytest_nvfp4.insights.warp_requests import Requests, requests_of
from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.irtypes import dtype_bits
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.roles import base_name, plain
from pytest_nvfp4.layout.warp import LINE_BYTES, SECTOR_BYTES, WARP, bank_conflicts, coalescing
from pytest_nvfp4.search.epilogue_fragments import LANES
from pytest_nvfp4.search.epilogue_store import Counts, Way
from pytest_nvfp4.toolchain.trace import Value

_LOAD = re.compile(r"tmem_load<\w+, (\d+) DP, (\d+) bit, x(\d+)")
_TO_SHARED = re.compile(r"tRS_s\w+")
_TMA = re.compile(r"bSG_s\w+")


@dataclass(frozen=True)
class Own:
    """Epilogue of a kernel.

    Attributes:
        way: The epilogue as a candidate of the ranking.
        threads: Threads of the copy.
        bits: Bits of an element of C.
        source: Names of the copy and the tensor.
    """

    way: Way
    threads: int
    bits: int
    source: str


def own(
    records: Sequence[Record], accesses: Sequence[Access] = (), values: Sequence[Value] = ()
) -> tuple[Own | None, str]:
    """Return the way of a kernel, or why it is not known.

    Args:
        records: All named layouts of the trace.
        accesses: Accesses of its PTX; empty if there is no PTX, so that the layouts alone decide the width.
        values: Its values, which join accesses to layouts.
    """
    readable = [record for record in records if record.unreadable is None]
    load = next((found for record in readable if (found := _LOAD.search(record.raw)) is not None), None)
    if load is None:
        return None, "its values contain no tcgen05.ld"
    chosen = _chosen(readable)
    if chosen is None:
        return None, "its values contain no copy of registers to C or to a tile in shared memory"
    space = chosen.tensor.info.space
    to_global = space == "gmem"
    stores = [access for access in accesses if access.direction == "store" and access.space == space]
    stores = accesses_of(chosen.part.name, stores, values) or (stores if to_global else [])
    bits = dtype_bits(chosen.tensor.info.dtype)
    requests = max(requests_of(chosen, stores), key=lambda requests: requests.width, default=None)
    if requests is None and stores:
        widths = ", ".join(map(str, sorted({store.width for store in stores})))
        return None, (
            f"the stores in its PTX have {widths} B a lane, which are not contiguous in the layouts of "
            f"{chosen.copy.name} over {chosen.tensor.name}"
        )
    if requests is None or not bits:
        return None, f"the width of an access of {chosen.copy.name} is unknown"
    if to_global:
        way = _direct(load, requests, bits=bits)
    elif any(_TMA.fullmatch(base_name(record.name)) for record in readable):
        box = _box(chosen, bits)
        if box is None:
            return None, f"the tile {chosen.tensor.name} in shared memory has no plain rows"
        way = _by_tma(load, requests, chosen, box, bits=bits)
    else:
        return None, f"the path of {chosen.tensor.name} from shared memory to C is unknown"
    return Own(way, _threads(chosen), bits, f"{chosen.copy.name} over {chosen.tensor.name}"), ""


def _chosen(records: Sequence[Record]) -> Walk | None:
    """Return the copy of registers to C, otherwise to a tile in shared memory."""
    walks = [
        walk
        for scope in dict.fromkeys(copies.scope_of(record.name) for record in records)
        for walk in copies.walks([record for record in records if copies.scope_of(record.name) == scope])
    ]
    to_global = [walk for walk in walks if walk.tensor.info.space == "gmem"]
    to_shared = [
        walk for walk in walks if walk.tensor.info.space == "smem" and _TO_SHARED.fullmatch(base_name(walk.part.name))
    ]
    return next(iter(to_global or to_shared), None)


def _loaded(load: re.Match[str], *, bits: int) -> tuple[str, int]:
    """Return the name of a load's shape, and the registers of its fp32 values and of the packed elements of C."""
    datapaths, word, repeat = (int(text) for text in load.groups())
    registers = datapaths * word * repeat // (32 * 32)
    return f"{datapaths}x{word}b.x{repeat}", registers + -(-registers * bits // 32)


def _direct(load: re.Match[str], requests: Requests, *, bits: int) -> Way:
    name, registers = _loaded(load, bits=bits)
    return Way(
        name=f"{name} -> {requests.width} B stores",
        path="direct",
        load=name,
        thread_value=None,
        columns=len(requests.addresses) * requests.width * 8 // bits,
        width=requests.width,
        store=_stores(requests),
        shared=None,
        registers=registers,
        smem_bytes=0,
        own=True,
    )


def _by_tma(load: re.Match[str], requests: Requests, walk: Walk, box: tuple[int, Counts], *, bits: int) -> Way:
    """Return the way through a tile in shared memory and TMA, in boxes of ``box`` (columns, stores)."""
    name, registers = _loaded(load, bits=bits)
    swizzle = walk.tensor.info.pointer_swizzle
    return Way(
        name=f"{name} -> {requests.width} B stores, {swizzle or 'no swizzle'} -> TMA",
        path="TMA",
        load=name,
        thread_value=None,
        columns=box[0],
        width=requests.width,
        store=box[1],
        shared=_writes(requests),
        registers=registers,
        smem_bytes=_bytes(walk, bits),
        swizzle=swizzle,
        own=True,
    )


def _threads(walk: Walk) -> int:
    shape = walk.copy.thread_value.shape
    return tree_size(shape[0]) if isinstance(shape, tuple) else LANES


def _stores(requests: Requests) -> Counts:
    costs = [coalescing(request, width=requests.width) for request in requests.addresses]
    useful = sum(cost.useful_bytes for cost in costs)
    ideal_lines = sum(-(-cost.useful_bytes // LINE_BYTES) for cost in costs)
    return Counts(
        len(costs),
        sum(cost.sectors for cost in costs),
        -(-useful // SECTOR_BYTES),
        sum(cost.lines for cost in costs),
        ideal_lines,
    )


def _writes(requests: Requests) -> Counts:
    costs = [bank_conflicts(request, width=requests.width) for request in requests.addresses]
    return Counts(len(costs), sum(cost.wavefronts for cost in costs), sum(cost.ideal for cost in costs))


def _box(walk: Walk, bits: int) -> tuple[int, Counts] | None:
    """Return the columns of the tile in shared memory, and the stores by TMA for a warp's 32 rows of it."""
    layout = walk.tensor.info.layout
    parts = modes(plain(layout)) if layout is not None else ()
    if len(parts) < 2:
        return None
    try:
        columns = tree_size(parts[1].shape)
    except LayoutError:
        return None
    row = columns * bits // 8
    sectors, lines = WARP * -(-row // SECTOR_BYTES), WARP * -(-row // LINE_BYTES)
    return columns, Counts(1, sectors, -(-WARP * row // SECTOR_BYTES), lines, -(-WARP * row // LINE_BYTES))


def _bytes(walk: Walk, bits: int) -> int:
    layout = walk.tensor.info.layout
    try:
        return 0 if layout is None else tree_size(plain(layout).shape) * bits // 8
    except LayoutError:
        return 0
