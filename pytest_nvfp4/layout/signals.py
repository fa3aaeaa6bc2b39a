"""Structural properties of a layout: order, overlap, vector width, alignment.

Every signal has the method that established it: ``canonical`` (from the modes, a proof), ``enumerated`` (every index
was checked, a proof), ``not provable`` (it depends on a ``?``, or the domain is too large). `pytest_nvfp4.layout.warp`
has the cost of one access of a warp.

Intractable or broadcasting layouts are not defects (a padded tile is intractable): compare signals, do not forbid them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeAlias, TypeVar

from pytest_nvfp4.layout.canonical import Mode, coalesced_modes
from pytest_nvfp4.layout.difference import AddressedLayout
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import TypeInfo
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.roles import plain
from pytest_nvfp4.layout.sameness import Comparable, Method, addressed
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, Tree, is_static, leaves

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """Value (None if unknown) with the method that established it."""

    value: T
    method: Method
    detail: str = ""


@dataclass(frozen=True, slots=True)
class VectorWidth:
    """Widest access of one thread to contiguous elements.

    ``contiguous`` is the known length of a run in elements; an access of ``elements`` of them (``bits`` in all) is the
    widest that run length, alignment, other strides and swizzle allow.
    """

    contiguous: int
    elements: int
    bits: int


def outermost(value: Comparable) -> Layout:
    """Return the layout that maps coordinates, without swizzles and offsets; raises `LayoutError` if there is none."""
    layout = addressed(value).layout
    if layout is None:
        raise LayoutError(f"{value}: a type without a layout has no layout signals")
    return plain(layout)


def tractable(value: Comparable) -> Signal[bool | None]:
    """Return whether sorted modes divide: ``size * stride`` of each divides the next stride (modes of stride 0 aside).

    Definition of Colfax Research, "Categorical Foundations for CuTe Layouts". Each coordinate mode of scaled-basis
    strides is considered separately. A tractable layout without broadcast is injective, but not conversely.
    """
    parts = _static_components(outermost(value))
    if parts is None:
        return Signal(None, "not provable", "it depends on the value of a '?'")
    return Signal(all(map(_divides, parts)), "canonical")


def compact(value: Comparable) -> Signal[bool | None]:
    """Return whether the offsets are ``0 .. size - 1``, each once: sorted strides form a chain from 1 without gaps.

    A composed layout is enumerated. The swizzle of a pointer is ignored: it permutes bytes, not offsets.
    """
    found = addressed(value)
    if isinstance(found.layout, ComposedLayout):
        return _enumerated(found.layout, lambda offsets: set(offsets) == set(range(len(offsets))))
    parts = _static_components(outermost(value))
    if parts is None:
        return Signal(None, "not provable", "it depends on the value of a '?'")
    return Signal(len(parts) <= 1 and all(map(_is_chain, parts)), "canonical")


def injective(value: Comparable) -> Signal[bool | None]:
    """Return whether no two indices share an offset; a swizzle is a bijection and is ignored.

    Proved by sorted modes that do not overlap, else by enumeration.
    """
    layout = outermost(value)
    broadcast = broadcast_modes(layout).value
    if broadcast:
        return Signal(False, "canonical", f"mode {broadcast[0]} has stride 0")
    parts = _static_components(layout)
    if parts is None:
        return Signal(None, "not provable", "it depends on the value of a '?'")
    if all(map(_does_not_overlap, parts)):
        return Signal(True, "canonical")
    return _enumerated(layout, lambda offsets: len(set(offsets)) == len(offsets))


def broadcast_modes(value: Comparable) -> Signal[tuple[tuple[int, ...], ...]]:
    """Return the modes of stride 0 and size other than 1, as paths: ``(0, 1)`` is mode 1 of mode 0.

    A mode of size ``?`` is included (although it may be 1); one of stride ``?`` is not.
    """
    layout = outermost(value)
    return Signal(tuple(_broadcast(layout.shape, layout.stride, ())), "canonical")


def alignment(value: TypeInfo | str) -> Signal[int]:
    """Return the alignment in bytes that the type guarantees: printed, or natural for the element type."""
    info = parse_type(value) if isinstance(value, str) else value
    detail = "printed" if info.align is not None else f"natural alignment of {info.dtype}"
    return Signal(info.byte_align, "canonical", detail)


def vector_width(
    value: Comparable, *, bits: int | None = None, align: int | None = None, max_bytes: int = 16
) -> Signal[VectorWidth]:
    """Return the widest access of one thread to contiguous elements, in any mode.

    ``bits`` (of an element) and ``align`` (bytes) default to those of the type; ``max_bytes`` is the widest access of
    the machine (16; sm_100 has 32 for global memory). Only guarantees of the type count: a size or stride ``?{div=8}``
    is a multiple of 8, and a swizzle keeps runs of ``2**base`` bytes together.

    Raises `LayoutError` if the element width is unknown.
    """
    found = addressed(value)
    layout = outermost(value)
    info = parse_type(value) if isinstance(value, str) and value.lstrip().startswith("!") else value
    width = bits or found.bits
    if width is None:
        raise LayoutError(f"{value}: a vector width needs the bits of an element; give bits=")
    aligned = align if align is not None else info.byte_align if isinstance(info, TypeInfo) else max_bytes
    run, rest = _contiguous(layout)
    limits = [run, *rest, *_swizzle_runs(found, width), *_offsets(found)]
    elements = math.gcd(*(limit for limit in limits if limit), _largest_power(max_bytes * 8 // width))
    # An access has a power of two of whole bytes, and its address must be a multiple of its width.
    while elements > 1 and (elements * width % 8 or aligned * 8 % (elements * width)):
        elements //= 2
    return Signal(VectorWidth(run, elements, elements * width), "canonical")


def _largest_power(limit: int) -> int:
    return 1 << (max(limit, 1).bit_length() - 1)


def _contiguous(layout: Layout) -> tuple[int, list[int]]:
    """Return the length of the known contiguous run, and the known divisors of the strides outside it."""
    pairs = zip(leaves(layout.shape), leaves(layout.stride), strict=True)
    left: list[Mode] = [(size, stride) for size, stride in pairs if size != 1 and stride != 0]
    run = 1
    while True:
        following = next((mode for mode in left if mode[1] == run), None)
        if following is None:
            break
        left.remove(following)
        run *= _divisor(following[0])
        if not isinstance(following[0], int):
            break
    return run, [_divisor(stride) for _, stride in left]


def _divisor(leaf: Leaf) -> int:
    if isinstance(leaf, int):
        return abs(leaf)
    return leaf.div if isinstance(leaf, Dynamic) else 1


def _swizzle_runs(found: AddressedLayout, width: int) -> list[int]:
    inner = found.layout.inner if isinstance(found.layout, ComposedLayout) else None
    runs = [1 << inner.base] if isinstance(inner, Swizzle) else []
    return runs if found.swizzle is None else [*runs, max(1, (8 << found.swizzle.base) // width)]


def _offsets(found: AddressedLayout) -> list[int]:
    layout = found.layout
    return [_divisor(leaf) for leaf in leaves(layout.offset)] if isinstance(layout, ComposedLayout) else []


def _broadcast(shape: Tree, stride: Tree, path: tuple[int, ...]) -> list[tuple[int, ...]]:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        pairs = enumerate(zip(shape, stride, strict=True))
        return [found for place, (size, step) in pairs for found in _broadcast(size, step, (*path, place))]
    zero = stride == 0 or (isinstance(stride, ScaledBasis) and stride.value == 0)
    return [path] if zero and shape != 1 else []


Test: TypeAlias = "Callable[[Sequence[Tree]], bool]"

Steps: TypeAlias = list[tuple[Fraction, int]]
"""Sorted modes ``(stride, size)``."""


def _static_components(layout: Layout) -> list[Steps] | None:
    """Return the modes by coordinate mode, sorted by stride; None if any is dynamic.

    Each stride moves in one coordinate mode, so the function is the product of its parts.
    """
    parts: dict[tuple[int, ...], Steps] = {}
    for size, stride in coalesced_modes(layout):
        if not (is_static(size) and is_static(stride)) or not isinstance(size, int):
            return None
        path, step = (stride.modes, stride.value) if isinstance(stride, ScaledBasis) else ((), stride)
        if not isinstance(step, int | Fraction):
            return None
        parts.setdefault(path, []).append((Fraction(step), size))
    return [sorted(part) for part in parts.values()]


def _divides(part: Steps) -> bool:
    moving = [(stride, size) for stride, size in part if stride]
    return all(following % (stride * size) == 0 for (stride, size), (following, _) in itertools.pairwise(moving))


def _does_not_overlap(part: Steps) -> bool:
    """Return whether each stride exceeds the reach of all smaller ones in absolute value.

    Sorted by |d|, the modes reach sum((s_i - 1) |d_i|); a larger next stride excludes equal offsets.
    """
    reach = Fraction(0)
    for stride, size in sorted((abs(stride), size) for stride, size in part):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _is_chain(part: Steps) -> bool:
    reach = 1
    for stride, size in part:
        if stride != reach:
            return False
        reach *= size
    return True


def _enumerated(layout: AnyLayout, holds: Test) -> Signal[bool | None]:
    try:
        return Signal(holds(values(layout)), "enumerated")
    except LayoutError as error:
        return Signal(None, "not provable", str(error))
