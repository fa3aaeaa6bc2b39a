"""Nested integer tuples: CuTe's shapes, strides and coordinates.

A *tree* is a leaf or a Python tuple of trees. Leaves are ``int``, `Fraction` (part of an element, as in ``1/2@0``),
`Dynamic` (``?``), `ScaledBasis` (``64@0``) and `Wildcard` (``_``). They print as CuTe DSL's IR types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TypeAlias


class Wildcard(Enum):
    """Wildcard ``_`` of coordinates and tilers, which selects the whole mode."""

    ALL = "_"

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Value known only at run time: ``?``, ``?{div=32}``, ``?{i64}``, ``?{i64 div=16}``.

    ``div`` is a known divisor and ``width`` the bits of the integer. Two equal `Dynamic` are the same *text* but
    not necessarily the same *number*, because the IR prints every symbol as ``?``.
    """

    div: int = 1
    width: int = 32

    def __str__(self) -> str:
        words = [f"i{self.width}"] if self.width != 32 else []
        if self.div != 1:
            words.append(f"div={self.div}")
        return f"?{{{' '.join(words)}}}" if words else "?"


@dataclass(frozen=True, slots=True)
class ScaledBasis:
    """Scaled basis vector: ``value`` times the unit vector of mode ``modes`` (outermost first; CuTe prints it last).

    ``ScaledBasis(3, (1, 0))`` is ``3@0@1``: three steps in mode 0 of mode 1.
    """

    value: int | Fraction | Dynamic
    modes: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.value) + "".join(f"@{mode}" for mode in reversed(self.modes))


Number: TypeAlias = int | Fraction
Leaf: TypeAlias = int | Fraction | Dynamic | ScaledBasis | Wildcard
Tree: TypeAlias = "Leaf | tuple[Tree, ...]"


def render_tree(tree: Tree) -> str:
    """Return the tree in CuTe's notation: no blanks, and no comma after a single member."""
    if isinstance(tree, tuple):
        return f"({','.join(map(render_tree, tree))})"
    return str(tree)


def leaves(tree: Tree) -> tuple[Leaf, ...]:
    """Return the leaves of the tree, left to right."""
    if not isinstance(tree, tuple):
        return (tree,)
    flat: list[Leaf] = []
    for child in tree:
        if isinstance(child, tuple):
            flat += leaves(child)
        else:
            flat.append(child)
    return tuple(flat)


def congruent(a: Tree, b: Tree) -> bool:
    """Return whether both trees nest in the same way."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(b, tuple)


def map_leaves(function: Callable[[Leaf], Leaf], tree: Tree) -> Tree:
    """Return the tree with every leaf replaced by ``function(leaf)``."""
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, child) for child in tree)
    return function(tree)


def unflatten(flat: Sequence[Tree], profile: Tree) -> Tree:
    """Return the members of ``flat``, in order, nested as ``profile`` is; there must be one for each of its leaves."""
    queue = iter(flat)

    def nest(tree: Tree) -> Tree:
        return tuple(nest(child) for child in tree) if isinstance(tree, tuple) else next(queue)

    return nest(profile)


def is_static(tree: Tree) -> bool:
    """Return whether the tree has no run-time ``?``."""
    return not any(
        isinstance(leaf, Dynamic) or (isinstance(leaf, ScaledBasis) and isinstance(leaf.value, Dynamic))
        for leaf in leaves(tree)
    )
