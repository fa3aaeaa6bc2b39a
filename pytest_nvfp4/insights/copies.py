"""Walks of a copy's threads over a tile: the pairs of copies and tensors of a trace.

A tiled copy maps threads to elements of a tile (``layout_copy_tv``), a tile tensor maps elements to addresses, and a
partitioned tensor of the same scope confirms that the two belong together: it holds exactly the elements that the copy
assigns to thread 0. Without a confirmation there is no walk.

For a TMEM load the tiled copy describes the TMEM side, where a warp's 32 lanes are one object. PTX ISA,
"tcgen05.ld", shape ``.32x32b``: lane i of the warp receives row i, register j column j. On the register side the
thread's lane therefore replaces the row among the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_nvfp4.layout.coordinates import idx2crd, tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import ArgumentGroup, IrType, Quoted, TypeInfo
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Tiler
from pytest_nvfp4.layout.offsets import domain_size
from pytest_nvfp4.layout.tree import Dynamic, Leaf, Tree, is_static, leaves, map_leaves

LANES = 32
_MOST_VALUES = 16384


@dataclass(frozen=True)
class Copy:
    """A tiled copy from the threads' view.

    Attributes:
        name: Name in the listing.
        kind: ``tmem_load``, ``universal_copy``, ...
        thread_value: (threads, values) -> index in the tile.
        tiler: For each mode of a tensor, the part that belongs to the tile.
        bits: Bits of one access of one thread; None if the atom does not fix them.
    """

    name: str
    kind: str
    thread_value: Layout
    tiler: tuple[Layout, ...]
    bits: int | None


@dataclass(frozen=True)
class Walk:
    """A copy over a tile tensor, with the partition that confirms it.

    Attributes:
        copy: The copy.
        tensor: The tile tensor.
        part: The partitioned tensor.
        info: The tile tensor's type with a number for each ``?``.
        substituted: Description of the numbers in place of ``?``; empty if there are none.
    """

    copy: Copy
    tensor: Record
    part: Record
    info: TypeInfo
    substituted: str


def scope_of(name: str) -> str:
    """Return the scope of a name: ``kernel`` of ``kernel.tCgC``."""
    return name.rpartition(".")[0]


def copy_of(record: Record) -> Copy | None:
    """Return the tiled copy of a record from the threads' view; None if it is none, or of an unsupported kind."""
    info = record.info
    if info.family != "tiled_copy" or not info.tree.args or not isinstance(info.tree.args[0], IrType):
        return None
    atom = info.tree.args[0]
    kind = atom.name.rpartition(".")[2]
    thread_value, tiler = _term(info, "layout_copy_tv"), _term(info, "tiler_mn")
    if not isinstance(thread_value, Layout) or not isinstance(tiler, Tiler):
        return None
    if not is_static(thread_value.shape) or not is_static(thread_value.stride):
        return None
    modes = tuple(mode for mode in tiler.modes if isinstance(mode, Layout))
    if len(modes) != len(tiler.modes):
        return None
    words = [arg for arg in atom.args or () if isinstance(arg, str)]
    if kind == "tmem_load":
        registers = _register_side(thread_value) if {"32 DP", "32 bit"} <= set(words) else None
        return None if registers is None else Copy(record.name, kind, registers, modes, None)
    if kind not in {"universal_copy", "simt_async_copy", "simt_sync_copy"}:
        return None
    bits = next((int(word.split()[0]) for word in words if word.endswith(" b") and word.split()[0].isdigit()), None)
    return Copy(record.name, kind, thread_value, modes, bits)


def _term(info: TypeInfo, keyword: str) -> object:
    value = info.parameter(keyword)
    if isinstance(value, ArgumentGroup) and len(value.members) == 1:
        value = value.members[0]
    return value.term if isinstance(value, Quoted) else None


def _register_side(tmem_side: Layout) -> Layout | None:
    """Return threads and values of a ``.32x32b`` load's registers: the rows among the values become the lanes."""
    shape, stride = tmem_side.shape, tmem_side.stride
    match shape, stride:
        case ((int(lanes), warps), (*values, rows)), ((0, warp_step), (*steps, row_step)) if lanes == rows == LANES:
            return Layout(((lanes, warps), tuple(values)), ((row_step, warp_step), tuple(steps)))
    return None


def fixed(info: TypeInfo) -> tuple[TypeInfo, str] | None:
    """Return a type with a number in place of each ``?`` stride, and a description; None if a ``?`` remains.

    The number is the smallest multiple of the stride's divisor that does not make the modes overlap. A stride without
    a known divisor remains: nothing follows from it about sectors.
    """
    layout = info.layout
    if not isinstance(layout, Layout):
        return (info, "") if layout is not None and _static(layout) else None
    if _static(layout):
        return info, ""
    if not is_static(layout.shape):
        return None
    known = 1 + sum(
        (size - 1) * stride
        for size, stride in zip(leaves(layout.shape), leaves(layout.stride), strict=True)
        if isinstance(size, int) and isinstance(stride, int)
    )
    notes: list[str] = []

    def number(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, Dynamic) or leaf.div == 1:
            return leaf
        chosen = -(-known // leaf.div) * leaf.div
        notes.append(f"{chosen} in place of {leaf}")
        return chosen

    stride = map_leaves(number, layout.stride)
    if not is_static(stride):
        return None
    text = str(info).replace(f'"{layout}"', f'"{Layout(layout.shape, stride)}"')
    return parse_type(text), "; ".join(dict.fromkeys(notes))


def _static(layout: Layout | ComposedLayout) -> bool:
    while isinstance(layout, ComposedLayout):
        if not is_static(layout.offset):
            return False
        layout = layout.outer
    return is_static(layout.shape) and is_static(layout.stride)


def walks(records: Sequence[Record]) -> list[Walk]:
    """Return every copy over every tile tensor of one scope that a partitioned tensor of the scope confirms.

    Copies that assign the same elements to each thread, and tensors of one type, count once.
    """
    tensors = [record for record in records if _is_tensor(record.info)]
    copies: dict[tuple[Layout, tuple[Layout, ...], int | None], Copy] = {}
    for record in records:
        if (copy := copy_of(record)) is not None:
            copies.setdefault((copy.thread_value, copy.tiler, copy.bits), copy)
    found: list[Walk] = []
    for copy in copies.values():
        for tensor in {record.raw: record for record in reversed(tensors)}.values():
            ready = fixed(tensor.info)
            offsets = None if ready is None else _offsets(copy, ready[0])
            if ready is None or offsets is None:
                continue
            found += [
                Walk(copy, tensor, part, *ready)
                for part in tensors
                if part.raw != tensor.raw and _confirms(part.info, offsets, ready[0])
            ]
    return found


def _is_tensor(info: TypeInfo) -> bool:
    return info.family == "memref" and info.space in {"gmem", "smem"} and info.layout is not None


def _modes(info: TypeInfo) -> tuple[Tree, ...] | None:
    shape = info.layout.shape if info.layout is not None else None
    return shape if isinstance(shape, tuple) else None


def _offsets(copy: Copy, info: TypeInfo) -> list[Tree] | None:
    """Return the offsets of thread 0's elements of a tensor, tile by tile; None if the tile does not fit the tensor."""
    layout = info.layout
    modes = _modes(info)
    coords = coordinates_of(copy, info, thread=0)
    if coords is None or layout is None or modes is None:
        return None
    try:
        rests = [_rest(tile, tree_size(mode)) for tile, mode in zip(copy.tiler, modes, strict=False)]
        if None in rests:
            return None
        steps = [(rest or (1, 0)) for rest in rests] + [(tree_size(mode), 1) for mode in modes[len(rests) :]]
        if math.prod(count for count, _ in steps) * len(coords) > _MOST_VALUES:
            return None
        found = []
        for place in itertools.product(*(range(count) for count, _ in reversed(steps))):
            shift = [at * step for at, (_, step) in zip(reversed(place), steps, strict=True)]
            found += [layout(tuple(map(sum, zip(coord, shift, strict=True)))) for coord in coords]
    except LayoutError:
        return None
    return found


def _rest(tile: Layout, room: int) -> tuple[int, int] | None:
    """Return the number of tiles in a mode and the step from one to the next; None if they do not fill it evenly."""
    size = tree_size(tile.shape)
    if size == room:
        return 1, 0
    plain = size == 1 or tile(size - 1) == size - 1
    return (room // size, size) if plain and room % size == 0 else None


def coordinates_of(copy: Copy, info: TypeInfo, *, thread: int) -> list[tuple[int, ...]] | None:
    """Return the coordinates of a thread's values in the first tile, an index a mode; None if the tile does not fit."""
    modes = _modes(info)
    if modes is None or len(modes) < len(copy.tiler) or not isinstance(copy.thread_value.shape, tuple):
        return None
    try:
        sizes = [tree_size(mode.shape) for mode in copy.tiler]
        room = [tree_size(mode) for mode in modes]
        values = domain_size(copy.thread_value) // tree_size(copy.thread_value.shape[0])
        if values > _MOST_VALUES or any(size > limit for size, limit in zip(sizes, room, strict=False)):
            return None
        found = []
        for value in range(values):
            index = copy.thread_value((thread, value))
            if not isinstance(index, int):
                return None
            place = idx2crd(index, tuple(sizes))
            assert isinstance(place, tuple)
            steps = [mode(part) for mode, part in zip(copy.tiler, place, strict=True)]
            whole = [step for step, limit in zip(steps, room, strict=False) if isinstance(step, int) and step < limit]
            if len(whole) < len(steps):
                return None
            found.append((*whole, *([0] * (len(modes) - len(whole)))))
    except LayoutError:
        return None
    return found


def _confirms(part: TypeInfo, offsets: list[Tree], tile: TypeInfo) -> bool:
    """Return whether a tensor has exactly the offsets of thread 0, in the same order."""
    if part.space != tile.space or part.dtype != tile.dtype or part.pointer_swizzle != tile.pointer_swizzle:
        return False
    ready = fixed(part)
    if ready is None or ready[0].layout is None:
        return False
    layout = ready[0].layout
    try:
        return domain_size(layout) == len(offsets) and [layout(index) for index in range(len(offsets))] == offsets
    except LayoutError:
        return False
