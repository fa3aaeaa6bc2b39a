"""Insights from single layouts: order, overlap, vector width, alignment, TMEM columns, bank conflicts of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from pytest_nvfp4.insights.accesses import Access
from pytest_nvfp4.insights.model import Insight, Level
from pytest_nvfp4.layout import signals, warp
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.measures import smem_bytes, tmem_columns
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.properties import swizzle_period
from pytest_nvfp4.layout.roles import Roles, base_name, plain
from pytest_nvfp4.layout.tree import leaves
from pytest_nvfp4.text import plural

TMEM_COLUMNS = 512
"""TMEM columns of an SM (PTX ISA, "Tensor Memory")."""
WIDEST_BYTES = 16
_WORD_BYTES = 4
_ROWS = 8
_SCALES = re.compile(r"(?i)sf[ab]?(\d|_|$)|scale")
_PART = re.compile(r"t[A-Z]\w*|b[A-Z]{2}_\w*")


def of_layout(name: str, info: TypeInfo, roles: Roles | None) -> Iterator[Insight]:
    """Yield every signal of the type of one layout."""
    if info.layout is None:
        if info.space is not None and info.family == "ptr":
            yield _alignment(info)
        return
    yield _tractable(info)
    yield _compact(info)
    yield from _overlap(name, info)
    if info.dtype is not None and info.family == "memref":
        yield _alignment(info)
        yield from _swizzle_placement(name, info)
        yield from _width(info)
    yield from _capacity(info)
    if not _is_part(name):
        yield from _rows(info, roles)


def _tractable(info: TypeInfo) -> Insight:
    found = signals.tractable(info)
    meaning = "sorted by stride, each mode begins where a multiple of the one before ends (Colfax's definition)"
    if found.value is not False:
        return Insight("tractable", _yes(found.value), Level.FINE, found.method, meaning)
    meaning += "; a padded tile is not, and need not be"
    return Insight("tractable", "no", Level.NOTE, found.method, meaning, "unintended padding or an odd stride")


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _compact(info: TypeInfo) -> Insight:
    try:
        found = signals.compact(info)
    except LayoutError as error:
        return Insight("compact", "unknown", Level.FINE, "not provable", str(error))
    meaning = "its offsets are 0 .. size-1, each once: no gap and no overlap"
    return Insight("compact", _yes(found.value), Level.FINE, found.method, meaning)


def _overlap(name: str, info: TypeInfo) -> Iterator[Insight]:
    broadcast = signals.broadcast_modes(info)
    if broadcast.value:
        paths = ", ".join("mode " + ".".join(map(str, path)) for path in broadcast.value)
        scales = _SCALES.search(base_name(name)) is not None
        yield Insight(
            "broadcast",
            paths,
            Level.FINE if scales else Level.NOTE,
            broadcast.method,
            "stride 0: all coordinates of these modes are the same element"
            + (", as 16 elements of K share a scale factor" if scales else ""),
            "" if scales else "writes through this layout: several coordinates would write one element",
        )
    found = signals.injective(info)
    meaning = "no two coordinates share an element"
    if found.value is not False or broadcast.value:
        text = _yes(found.value) + (", by broadcast alone or with it" if found.value is False else "")
        yield Insight("injective", text, Level.FINE, found.method, meaning)
        return
    yield Insight(
        "injective",
        "no",
        Level.LOOK,
        found.method,
        "two coordinates share an element without a stride of 0: modes overlap",
        "the strides: one of them is smaller than the extent of the modes below it",
    )


def _alignment(info: TypeInfo) -> Insight:
    found = signals.alignment(info)
    return Insight(
        "alignment", f"{found.value} B", Level.FINE, "text", f"alignment of the address by the type ({found.detail})"
    )


def _is_part(name: str) -> bool:
    """Return whether a name is one of CuTe's for a thread's part of a tile (``tAsA``, ``tRS_sC``, ``bSG_sC``).

    Such a part begins anywhere in the tile, may be aligned less than the tile, and its modes are not the tile's rows.
    """
    return _PART.fullmatch(base_name(name)) is not None


def _swizzle_placement(name: str, info: TypeInfo) -> Iterator[Insight]:
    swizzle = info.pointer_swizzle
    if swizzle is None or not swizzle.bits or _is_part(name) or info.byte_align >= swizzle_period(swizzle):
        return
    yield Insight(
        "swizzle placement",
        f"{swizzle} repeats every {swizzle_period(swizzle)} B, aligned to {info.byte_align} B",
        Level.LOOK,
        "text",
        "which bank a row falls in depends on where the buffer is placed; TMA and the MMA descriptor assume a multiple "
        "of the period",
        f"the allocation: align the buffer to {swizzle_period(swizzle)} bytes",
    )


def _width(info: TypeInfo) -> Iterator[Insight]:
    bits = dtype_bits(info.dtype)
    if bits is None or info.space not in {"gmem", "smem", "rmem"}:
        return
    try:
        found = signals.vector_width(info)
    except LayoutError:
        return
    width = found.value
    run = width.contiguous * bits // 8
    value = f"{width.bits} bits ({plural(width.elements, 'element')} of {width.contiguous} side by side)"
    meaning = "the widest access that contiguity, alignment, the other strides and the swizzle allow one thread"
    full = WIDEST_BYTES * 8
    if width.bits >= min(full, run * 8) or info.space == "rmem":
        yield Insight("vector width", value, Level.FINE, found.method, meaning)
        return
    limited = f"alignment is {info.byte_align} B" if info.byte_align * 8 <= width.bits else "a stride or the swizzle"
    yield Insight(
        "vector width",
        value,
        Level.LOOK if width.bits < 32 else Level.NOTE,
        found.method,
        meaning + f"; limited by: {limited}",
        f"an alignment of {WIDEST_BYTES} bytes for the pointer and a divisor for the strides (cute.assume), if the "
        "kernel can guarantee them",
    )


def of_accesses(info: TypeInfo, accesses: Sequence[Access]) -> Iterator[Insight]:
    """Yield the widths of the accesses in the PTX that name a tensor, against the widest that its layout allows."""
    if not accesses or info.family != "memref" or info.layout is None:
        return
    try:
        allowed = min(WIDEST_BYTES, signals.vector_width(info).value.bits // 8)
    except LayoutError:
        return
    # From 4 bytes on a warp's neighbouring lanes fill whole sectors; less needs several requests for each of them.
    narrow = min(access.width for access in accesses) < min(allowed, _WORD_BYTES)
    yield Insight(
        "access width",
        ", ".join(dict.fromkeys(map(str, sorted(accesses, key=lambda access: access.width)))),
        Level.LOOK if narrow else Level.FINE,
        "text",
        f"the width of an access of one lane in the PTX; the layout allows {allowed} B",
        "a predicate on each element, or an alignment that the compiler cannot prove" if narrow else "",
    )


def _capacity(info: TypeInfo) -> Iterator[Insight]:
    columns = tmem_columns(info)
    if columns is not None:
        fits = columns <= TMEM_COLUMNS
        yield Insight(
            "TMEM columns",
            f"{columns} of {TMEM_COLUMNS}",
            Level.FINE if fits else Level.WRONG,
            "canonical",
            "columns from the tensor's first to its last; an allocation is a power of two of at least 32",
            "" if fits else "fewer accumulator stages or a smaller tile: an SM has 512 columns",
        )
    if info.space == "smem" and (size := smem_bytes(info)) is not None:
        yield Insight("shared memory", f"{size} B", Level.FINE, "canonical", "bytes from its first element to its last")


def _rows(info: TypeInfo, roles: Roles | None) -> Iterator[Insight]:
    """Yield the bank conflicts of the access that swizzles are made for: 16 bytes from each of 8 consecutive rows."""
    bits = dtype_bits(info.dtype)
    if info.space != "smem" or info.family != "memref" or info.layout is None or not bits:
        return
    found = _row_stride(plain(info.layout))
    if found is None:
        return
    at, size, stride = found
    pitch = stride * bits
    width = math.gcd(WIDEST_BYTES, pitch // 8) if pitch % 8 == 0 else 0
    if width not in warp.WIDTHS or size < _ROWS:
        return
    unit = _unit(plain(info.layout), at)
    try:
        addresses = warp.addresses_at(info, [row * unit for row in range(_ROWS)])
        conflicts = warp.bank_conflicts(addresses, width=width)
    except LayoutError:
        return
    role = (roles.at((0,)) if roles else None) or "the first mode"
    value = f"{conflicts.ways} way{'s' if conflicts.ways > 1 else ''} ({_ROWS} rows of {role}, {width} B each)"
    meaning = (
        "lanes that read one column of the tile, 16 bytes a row, as ldmatrix, the MMA's core matrices and vector "
        "loads do"
    )
    bad = conflicts.ways > 1
    yield Insight(
        "bank conflicts",
        value,
        Level.LOOK if bad else Level.FINE,
        "enumerated",
        meaning,
        f"a swizzle for rows of {pitch // 8} bytes, or padded rows, if the kernel reads the tile this way"
        if bad
        else "",
    )


def _row_stride(layout: Layout) -> tuple[int, int, int] | None:
    """Return (place, size, stride) of the leaf that counts rows: the first of several elements and stride over 1."""
    for at, (size, stride) in enumerate(zip(leaves(layout.shape), leaves(layout.stride), strict=True)):
        if not isinstance(size, int) or not isinstance(stride, int):
            return None
        if size > 1 and stride > 1:
            return at, size, stride
    return None


def _unit(layout: Layout, place: int) -> int:
    """Return the index at which the leaf at a place has coordinate 1 and all others 0."""
    return math.prod(size for size in leaves(layout.shape)[:place] if isinstance(size, int))
