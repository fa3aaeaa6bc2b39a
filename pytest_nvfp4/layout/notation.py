"""Layouts, swizzles, compositions and tilers as values that print exactly as CuTe DSL's IR types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pytest_nvfp4.layout.coordinates import Vector, add_vectors, as_tree, integer, tree_vector, vector
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.tree import Tree, Wildcard, congruent, render_tree


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Swizzle ``S<bits,base,shift>``: XOR the bits at ``base + shift`` into those at ``base`` (mirrored if shift < 0).

    On a pointer (``!cute.ptr<.., S<3,4,3>>``) it acts on **byte addresses**; inside a composed layout it acts on the
    offsets of that layout. Raises `LayoutError` unless ``bits, base >= 0`` and ``|shift| >= bits``.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise LayoutError(f"{self}: a swizzle needs bits >= 0, base >= 0 and |shift| >= bits")

    def __call__(self, offset: int) -> int:
        """The swizzled offset; bits outside the pattern are kept."""
        picked = offset & (((1 << self.bits) - 1) << (self.base + max(self.shift, 0)))
        return offset ^ (picked >> self.shift if self.shift >= 0 else picked << -self.shift)

    def __str__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout ``shape:stride``: maps coordinate ``c`` of ``shape`` to the sum of ``c_i * stride_i``.

    A single integer counts coordinates colexicographically (the first mode fastest), as in CuTe.
    Raises `LayoutError` if shape and stride nest differently.
    """

    shape: Tree
    stride: Tree

    def __post_init__(self) -> None:
        if not congruent(self.shape, self.stride):
            raise LayoutError(
                f"layout {render_tree(self.shape)}:{render_tree(self.stride)}: shape and stride nest differently; "
                "give every mode one stride"
            )

    def vector(self, coord: Tree) -> Vector:
        """Return the value at a coordinate by coordinate mode; raises `DynamicLayoutError` if it depends on a ``?``."""
        return vector(coord, self.shape, self.stride)

    def __call__(self, coord: Tree) -> Tree:
        """The value at an index or a coordinate: a number, or a nested coordinate for scaled-basis strides.

        An index past the end continues in the last mode, as in CuTe. Raises `DynamicLayoutError` if the value depends
        on a ``?`` (a coordinate of 0 in a mode of unknown stride does not).
        """
        return as_tree(self.vector(coord))

    def __str__(self) -> str:
        return f"{render_tree(self.shape)}:{render_tree(self.stride)}"


@dataclass(frozen=True, slots=True)
class ComposedLayout:
    """Composed layout ``inner o offset o outer``: maps coordinate ``c`` to ``inner(offset + outer(c))``.

    ``inner`` is a swizzle, a layout, or None for a coordinate tensor (``(0,?{div=128},0) o outer``), whose function is
    ``offset + outer(c)``.
    """

    inner: Swizzle | Layout | None
    offset: Tree
    outer: Layout | ComposedLayout

    def vector(self, coord: Tree) -> Vector:
        """Return the value at a coordinate by coordinate mode; raises `DynamicLayoutError` if it depends on a ``?``."""
        moved = add_vectors(tree_vector(self.offset), self.outer.vector(coord))
        if self.inner is None:
            return moved
        place = as_tree(moved)
        if isinstance(self.inner, Layout):
            return self.inner.vector(place)
        if isinstance(place, tuple):
            raise LayoutError(f"{self}: a swizzle acts on integers, not on the coordinate {render_tree(place)}")
        return {(): self.inner(integer(place, where=self, needed="swizzling"))}

    def __call__(self, coord: Tree) -> Tree:
        """The value at an index or a coordinate; see `Layout.__call__`."""
        return as_tree(self.vector(coord))

    @property
    def shape(self) -> Tree:
        """Shape of the domain, which is that of the outer layout."""
        return self.outer.shape

    def __str__(self) -> str:
        head = "" if self.inner is None else f"{self.inner} o "
        return f"{head}{render_tree(self.offset)} o {self.outer}"


AnyLayout: TypeAlias = Layout | ComposedLayout


@dataclass(frozen=True, slots=True)
class Tiler:
    """Tiler with one layout, tiler or wildcard per mode: ``[128:1;(2,2):(1,4);_]``."""

    modes: tuple[Layout | Tiler | Wildcard, ...]

    def __str__(self) -> str:
        return f"[{';'.join(map(str, self.modes))}]"


Term: TypeAlias = "Tree | Layout | ComposedLayout | Swizzle | Tiler"


def render(term: Term) -> str:
    """Return any term in CuTe's notation."""
    return render_tree(term) if isinstance(term, tuple) else str(term)
