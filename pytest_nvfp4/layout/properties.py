"""Changes of a type's properties besides the layout function: family, space, element, alignment, arguments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from pytest_nvfp4.layout.canonical import canonical_text
from pytest_nvfp4.layout.change import Delta, Severity
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import Argument, ArgumentGroup, IrType, Keyword, Quoted, TypeInfo, dtype_bits
from pytest_nvfp4.layout.notation import Layout, Swizzle
from pytest_nvfp4.layout.sameness import SamenessLevel, compare

TMA_DESCRIPTOR_ALIGN = 64
"""Minimum alignment of a TMA descriptor in bytes (CuTe DSL 4.8.1: "alignment at least 64"; PTX ISA, tensormap)."""
BULK_COPY_ALIGN = 16
"""Alignment of source and destination of a bulk or tensor copy in bytes (PTX ISA, cp.async.bulk)."""
# A layout with and without an inner function are the same kind of object, compared as functions.
_FUNCTIONS = frozenset({"layout", "composed_layout"})


def property_deltas(old: TypeInfo, new: TypeInfo) -> Iterator[Delta]:
    """Return the properties that differ, each with its own severity; the layout function is not included."""
    if old.family != new.family and not {old.family, new.family} <= _FUNCTIONS:
        yield Delta("kind", old.family, new.family, "", Severity.DIFFERENT, "another kind of object has this name")
    if old.space != new.space:
        yield Delta("space", old.space, new.space, "", Severity.DIFFERENT, "other memory: other capacity, other rules")
    if old.dtype != new.dtype:
        yield Delta("dtype", old.dtype, new.dtype, "", Severity.DIFFERENT, _dtype_note(old, new))
    if (found := _alignment(old, new)) is not None:
        yield found
    if old.family == new.family:
        yield from _arguments(old, new)


def _dtype_note(old: TypeInfo, new: TypeInfo) -> str:
    bits = dtype_bits(old.dtype), dtype_bits(new.dtype)
    if None in bits or bits[0] == bits[1]:
        return "the same bits mean another number" if bits[0] is not None else ""
    return f"an element has {bits[1]} bits, not {bits[0]}: every byte address changes"


def _alignment(old: TypeInfo, new: TypeInfo) -> Delta | None:
    """Compare alignments in bytes; an unprinted one is the natural alignment of the element type."""
    if (old.align is None and new.align is None) or old.byte_align == new.byte_align:
        return None
    before, after = old.byte_align, new.byte_align
    if after > before:
        return Delta("align", before, after, "B", Severity.COSMETIC, "a stronger guarantee")
    return Delta("align", before, after, "B", Severity.DIFFERENT, _lost_note(new, before=before, after=after))


def _lost_note(new: TypeInfo, *, before: int, after: int) -> str:
    parts = ["a guarantee is lost"]
    swizzle = new.pointer_swizzle
    if swizzle is not None and swizzle.bits and after < swizzle_period(swizzle) <= before:
        parts.append(
            f"{swizzle} repeats every {swizzle_period(swizzle)} bytes, so the bank of a row now depends on the "
            "address of the buffer"
        )
    if after < BULK_COPY_ALIGN <= before:
        parts.append(f"TMA and bulk copies need {BULK_COPY_ALIGN} bytes")
    if after < TMA_DESCRIPTOR_ALIGN <= before and new.family == "ptr" and new.dtype in {"i64", "i8", "ui8"}:
        parts.append(f"a TMA descriptor needs {TMA_DESCRIPTOR_ALIGN} bytes, and the compile fails with less")
    return "; ".join(parts)


def swizzle_period(swizzle: Swizzle) -> int:
    """Return the period of a swizzle on byte addresses in bytes: 1024 for ``S<3,4,3>``."""
    return 1 << (swizzle.bits + swizzle.base + abs(swizzle.shift))


def _arguments(old: TypeInfo, new: TypeInfo) -> Iterator[Delta]:
    """Iterate over differences of the other arguments: an MMA's instruction, a copy's bits, a nested layout.

    A default that only one DSL version prints (``permutation_MNK`` of nothing) is not a difference.
    """
    if old.layout is None and canonical_text(old) == canonical_text(new):
        return
    left, right = list(_other(old)), list(_other(new))
    if list(map(str, left)) != list(map(str, right)):
        yield from _paired(left, right, "")


def _other(info: TypeInfo) -> Iterator[Argument]:
    """Iterate over arguments outside the fields of `TypeInfo`; without a layout, all but the alignment."""
    for arg in parse_type(canonical_text(info)).tree.args or () if info.layout is None else info.tree.args or ():
        if isinstance(arg, Swizzle) or (isinstance(arg, IrType) and arg.name == "align"):
            if info.layout is None and isinstance(arg, Swizzle):
                yield arg
            continue
        if info.layout is not None and (isinstance(arg, Quoted) or str(arg) in {info.dtype, info.space}):
            continue
        if info.family == "ptr" and str(arg) in {info.dtype, info.space}:
            continue
        yield arg


def _paired(left: list[Argument], right: list[Argument], path: str) -> Iterator[Delta]:
    named = [{arg.name: arg.value for arg in side if isinstance(arg, Keyword)} for side in (left, right)]
    for name in dict.fromkeys((*named[0], *named[1])):
        yield from _value(named[0].get(name), named[1].get(name), f"{path}{name}")
    plain = [[arg for arg in side if not isinstance(arg, Keyword)] for side in (left, right)]
    for at, (was, now) in enumerate(zip_longest(*plain)):
        if isinstance(was, IrType) and isinstance(now, IrType) and was.name == now.name:
            yield from _paired(list(was.args or ()), list(now.args or ()), f"{path}{_short(was.name)}.")
        else:
            yield from _value(was, now, f"{path}argument {at + 1}")


def _value(was: Argument | None, now: Argument | None, field: str) -> Iterator[Delta]:
    if str(was) == str(now):
        return
    old, new = (None if side is None else str(side) for side in (was, now))
    if _same_layouts(was, now):
        yield Delta(field, old, new, "", Severity.RENESTED, "the same function, nested differently")
    else:
        yield Delta(field, old, new, "", Severity.DIFFERENT, "")


def _same_layouts(was: Argument | None, now: Argument | None) -> bool:
    """Return whether both are quoted layouts (or ``<"...">``) of equal modes: the same function mode by mode."""
    if isinstance(was, ArgumentGroup) and isinstance(now, ArgumentGroup) and len(was.members) == len(now.members) > 0:
        return all(map(_same_layouts, was.members, now.members))
    if not (isinstance(was, Quoted) and isinstance(now, Quoted)):
        return False
    if not (isinstance(was.term, Layout) and isinstance(now.term, Layout)):
        return was.term == now.term
    return _same_modes(was.term, now.term)


def _same_modes(old: Layout, new: Layout) -> bool:
    return compare(old, new).level in {SamenessLevel.IDENTICAL, SamenessLevel.RENESTED}


def _short(name: str) -> str:
    return name.removeprefix("!cute_nvgpu.").removeprefix("!cute.")
