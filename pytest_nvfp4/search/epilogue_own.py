"""The way that a traced kernel takes from TMEM to global memory, counted from its own layouts."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from pytest_nvfp4.insights import copies
from pytest_nvfp4.insights.copies import Walk
from pytest_nvfp4.insights.warp_requests import requests_of
from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import dtype_bits
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.roles import base_name, plain, top_modes
from pytest_nvfp4.layout.warp import LINE_BYTES, SECTOR_BYTES, WARP, bank_conflicts, coalescing
from pytest_nvfp4.search.epilogue_fragments import LANES
from pytest_nvfp4.search.epilogue_store import Counts, Way

_LOAD = re.compile(r"tmem_load<\w+, (\d+) DP, (\d+) bit, x(\d+)")
_TO_SHARED = re.compile(r"tRS_s\w+")
_TMA = re.compile(r"bSG_s\w+")


@dataclass(frozen=True)
class Own:
    """The epilogue of a kernel.

    Attributes:
        way: As it is ranked.
        threads: Threads of the copy.
        bits: Bits of an element of C.
        source: The names it was read from.
    """

    way: Way
    threads: int
    bits: int
    source: str


def own(records: Sequence[Record], *, stores: Set[int] = frozenset()) -> tuple[Own | None, str]:
    """The way of a kernel, or why it is not known.

    Args:
        records: All named layouts of the trace.
        stores: Bytes of a lane of the stores to global memory that the machine code has; empty where it is not known.
    """
    readable = [record for record in records if record.unreadable is None]
    load = next((found for record in readable if (found := _LOAD.search(record.raw)) is not None), None)
    if load is None:
        return None, "no tcgen05.ld is among its values"
    chosen = _chosen(readable)
    if chosen is None:
        return None, "no copy of its registers to C or to a tile in shared memory is among its values"
    to_global = chosen.tensor.info.space == "gmem"
    width, requests = _widest(chosen, stores if to_global else frozenset())
    bits = dtype_bits(chosen.tensor.info.dtype)
    if not requests or not width or not bits:
        return None, f"what {chosen.copy.name} moves at once is not known"
    if to_global and stores and width not in stores:
        seen = ", ".join(map(str, sorted(stores)))
        return None, (
            f"the layouts of {chosen.copy.name} over {chosen.tensor.name} give {width} B a lane, and the stores to "
            f"global memory in its machine code have {seen}"
        )
    if to_global:
        way = _direct(load, requests, width=width, bits=bits)
    elif any(_TMA.fullmatch(base_name(record.name)) for record in readable):
        box = _box(chosen, bits)
        if box is None:
            return None, f"the tile {chosen.tensor.name} in shared memory has no plain rows"
        way = _by_tma(load, requests, chosen, box, width=width, bits=bits)
    else:
        return None, f"how {chosen.tensor.name} goes from shared memory to C is not known"
    return Own(way, _threads(chosen), bits, f"{chosen.copy.name} over {chosen.tensor.name}"), ""


def _chosen(records: Sequence[Record]) -> Walk | None:
    """The copy of registers to C, or else to a tile in shared memory."""
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
    """The name of a load's shape, and the registers of its values and of what they are packed into."""
    datapaths, word, repeat = (int(text) for text in load.groups())
    registers = datapaths * word * repeat // (32 * 32)
    return f"{datapaths}x{word}b.x{repeat}", registers + -(-registers * bits // 32)


def _direct(load: re.Match[str], requests: list[tuple[int, ...]], *, width: int, bits: int) -> Way:
    name, registers = _loaded(load, bits=bits)
    return Way(
        name=f"{name} -> {width} B stores",
        path="direct",
        load=name,
        thread_value=None,
        columns=len(requests) * width * 8 // bits,
        width=width,
        store=_stores(requests, width),
        shared=None,
        registers=registers,
        smem_bytes=0,
        own=True,
    )


def _by_tma(
    load: re.Match[str],
    requests: list[tuple[int, ...]],
    walk: Walk,
    box: tuple[int, Counts],
    *,
    width: int,
    bits: int,
) -> Way:
    """By TMA from the tile in shared memory that a walk writes, ``box`` (columns, stores) at a time."""
    name, registers = _loaded(load, bits=bits)
    swizzle = walk.tensor.info.pointer_swizzle
    return Way(
        name=f"{name} -> {width} B stores, {swizzle or 'no swizzle'} -> TMA",
        path="TMA",
        load=name,
        thread_value=None,
        columns=box[0],
        width=width,
        store=box[1],
        shared=_writes(requests, width),
        registers=registers,
        smem_bytes=_bytes(walk, bits),
        swizzle=swizzle,
        own=True,
    )


def _widest(walk: Walk, stores: Set[int]) -> tuple[int, list[tuple[int, ...]]]:
    """The widest access that layouts allow and the machine code has; what the layouts allow if there is none."""
    for most in sorted(stores, reverse=True):
        width, requests = requests_of(walk, most_bytes=most)
        if width in stores:
            return width, requests
    return requests_of(walk)


def _threads(walk: Walk) -> int:
    shape = walk.copy.thread_value.shape
    return tree_size(shape[0]) if isinstance(shape, tuple) else LANES


def _stores(requests: Sequence[tuple[int, ...]], width: int) -> Counts:
    costs = [coalescing(request, width=width) for request in requests]
    useful = sum(cost.useful_bytes for cost in costs)
    ideal_lines = sum(-(-cost.useful_bytes // LINE_BYTES) for cost in costs)
    return Counts(
        len(costs),
        sum(cost.sectors for cost in costs),
        -(-useful // SECTOR_BYTES),
        sum(cost.lines for cost in costs),
        ideal_lines,
    )


def _writes(requests: Sequence[tuple[int, ...]], width: int) -> Counts:
    costs = [bank_conflicts(request, width=width) for request in requests]
    return Counts(len(costs), sum(cost.wavefronts for cost in costs), sum(cost.ideal for cost in costs))


def _box(walk: Walk, bits: int) -> tuple[int, Counts] | None:
    """Columns of the tile in shared memory, and what TMA writes for a warp's 32 rows of it."""
    layout = walk.tensor.info.layout
    modes = top_modes(plain(layout)) if layout is not None else ()
    if len(modes) < 2:
        return None
    try:
        columns = tree_size(modes[1].shape)
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
