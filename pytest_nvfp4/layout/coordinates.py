"""Indices and coordinates in CuTe's colexicographic order, and values of layouts at coordinates.

A value of a layout function is a *vector*: a mapping from coordinate mode to number. Integer strides have the single
mode ``()``; a stride ``64@0`` contributes to mode ``(0,)``. `as_tree` converts a vector to CuTe's
notation: a number, or the nested coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeAlias

from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.tree import Dynamic, Leaf, Number, ScaledBasis, Tree, Wildcard, leaves, render_tree

Vector: TypeAlias = dict[tuple[int, ...], Number]


def number(leaf: Leaf, *, where: object, needed: str) -> Number:
    """Return the leaf as a number; raises `DynamicLayoutError` for ``?`` and `LayoutError` for ``_`` or a basis."""
    if isinstance(leaf, Dynamic):
        raise DynamicLayoutError(where, needed)
    if isinstance(leaf, ScaledBasis | Wildcard):
        raise LayoutError(f"{where}: {needed} needs a number in place of '{leaf}'")
    return leaf


def integer(leaf: Leaf, *, where: object, needed: str) -> int:
    """Return the leaf as an integer; raises as `number` does, and `LayoutError` for a fraction."""
    value = number(leaf, where=where, needed=needed)
    if not isinstance(value, int):
        raise LayoutError(f"{where}: {needed} needs an integer in place of '{leaf}'")
    return value


def tree_size(shape: Tree, *, where: object = None) -> int:
    """Return the number of coordinates of the shape; raises `DynamicLayoutError` if it has a ``?``."""
    place = render_tree(shape) if where is None else where
    return prod(integer(leaf, where=place, needed="its size") for leaf in leaves(shape))


def idx2crd(index: int, shape: Tree) -> Tree:
    """Return the coordinate of a linear index, first mode fastest; an index past the end continues in the last mode.

    Raises `DynamicLayoutError` if a mode other than the last is a ``?``, because the index is divided by its size.
    """
    if not isinstance(shape, tuple):
        return index
    coord: list[Tree] = []
    for place, mode in enumerate(shape):
        if place == len(shape) - 1:
            coord.append(idx2crd(index, mode))
        else:
            index, rest = divmod(index, size) if (size := tree_size(mode)) else (0, 0)
            coord.append(idx2crd(rest, mode))
    return tuple(coord)


def crd2idx(coord: Tree, shape: Tree, stride: Tree | None = None) -> Tree:
    """Return the value at a coordinate: an index into ``shape``, or the offset if strides are given.

    ``coord`` is a number for the whole shape, or a tuple with one coordinate per mode (whole or nested).
    Raises `LayoutError` if it does not fit the shape and `DynamicLayoutError` if it needs the value of a ``?``.
    """
    strides = stride if stride is not None else compact_stride(shape)
    return as_tree(vector(coord, shape, strides))


def compact_stride(shape: Tree) -> Tree:
    """Return the compact strides of a shape, first mode fastest, with 0 for modes of size 1 as CuTe writes them."""
    return _compact(shape, 1)[0]


def _compact(shape: Tree, step: int) -> tuple[Tree, int]:
    if isinstance(shape, tuple):
        strides: list[Tree] = []
        for mode in shape:
            stride, step = _compact(mode, step)
            strides.append(stride)
        return tuple(strides), step
    size = tree_size(shape)
    return (0 if size == 1 else step), step * size


def vector(coord: Tree, shape: Tree, stride: Tree) -> Vector:
    """Return the value at a coordinate as a vector; see `crd2idx`."""
    total: Vector = {}
    _add_value(total, coord, shape, stride)
    return total


def _add_value(total: Vector, coord: Tree, shape: Tree, stride: Tree) -> None:
    if isinstance(coord, tuple):
        if not (isinstance(shape, tuple) and isinstance(stride, tuple) and len(coord) == len(shape)):
            raise LayoutError(f"coordinate {render_tree(coord)} does not fit the shape {render_tree(shape)}")
        for part, mode, step in zip(coord, shape, stride, strict=True):
            _add_value(total, part, mode, step)
    elif isinstance(shape, tuple):
        whole = integer(coord, where=f"coordinate {coord}", needed="an index")
        _add_value(total, idx2crd(whole, shape), shape, stride)
    else:
        if isinstance(stride, tuple):
            raise LayoutError(f"stride {render_tree(stride)} does not nest as the shape {render_tree(shape)} does")
        _add_step(total, number(coord, where=f"coordinate {coord}", needed="an offset"), stride)


def _add_step(total: Vector, place: Number, stride: Leaf) -> None:
    # A mode at coordinate 0 is recorded too: it determines the rank of the value, and its stride may be unknown.
    modes, factor = (stride.modes, stride.value) if isinstance(stride, ScaledBasis) else ((), stride)
    step = number(factor, where=f"stride {stride}", needed="an offset") if place else 0
    total[modes] = total.get(modes, 0) + place * step


def as_tree(value: Mapping[tuple[int, ...], Number]) -> Tree:
    """Return the vector in CuTe's notation: a number, or a nested coordinate with 0 for missing modes.

    Raises `LayoutError` if a mode is both a number other than 0 and a tuple (strides ``1`` and ``1@0`` together).
    """
    plain = value.get((), 0)
    nested = {modes: amount for modes, amount in value.items() if modes}
    if not nested:
        return plain.numerator if plain.denominator == 1 else plain
    if plain:
        raise LayoutError(f"offset {plain} mixes a plain number with coordinates; give all strides a basis, or none")
    rank = 1 + max(modes[0] for modes in nested)
    parts: list[dict[tuple[int, ...], Number]] = [{} for _ in range(rank)]
    for modes, amount in nested.items():
        parts[modes[0]][modes[1:]] = amount
    return tuple(as_tree(part) for part in parts)


def tree_vector(tree: Tree, prefix: tuple[int, ...] = ()) -> Vector:
    """Return the vector of a coordinate: ``(3,(0,7))`` has 3 in mode ``(0,)`` and 7 in mode ``(1, 1)``.

    Raises `DynamicLayoutError` if the coordinate has a ``?``.
    """
    if isinstance(tree, tuple):
        total: Vector = {}
        for place, child in enumerate(tree):
            total.update(tree_vector(child, (*prefix, place)))
        return total
    return {prefix: number(tree, where=f"offset {tree}", needed="an offset")}


def add_vectors(a: Mapping[tuple[int, ...], Number], b: Mapping[tuple[int, ...], Number]) -> Vector:
    """Return the sum of two vectors."""
    total = dict(a)
    for modes, amount in b.items():
        total[modes] = total.get(modes, 0) + amount
    return total
