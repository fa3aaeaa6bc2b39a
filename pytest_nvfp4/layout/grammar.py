"""Parser of CuTe DSL's type texts: what ``str(obj.type)`` prints, on nvidia-cutlass-dsl 4.4.0 and 4.8.1.

`parse_type` reads a whole type (``!cute.memref<f16, gmem, align<32>, "(128,?):(?{div=32},1)">``) and `parse_layout`
a layout alone. Everything parsed prints back to the same text. Both are cached: types repeat a great deal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias, TypeVar

from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError, LayoutSyntaxError, PoisonedLayout
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle, Term, Tile, render
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, Tree, Wildcard, render_tree

__all__ = [
    "AnyLayout",
    "ComposedLayout",
    "Dynamic",
    "DynamicLayoutError",
    "IrType",
    "Layout",
    "LayoutError",
    "LayoutSyntaxError",
    "PoisonedLayout",
    "ScaledBasis",
    "Swizzle",
    "Term",
    "Tile",
    "Tree",
    "TypeInfo",
    "Wildcard",
    "dtype_bits",
    "parse_layout",
    "parse_term",
    "parse_type",
    "render",
    "render_tree",
]

T = TypeVar("T")
SPACES = frozenset({"gmem", "smem", "rmem", "tmem", "generic", "dsmem"})

_LEAF = re.compile(
    r"""(?: (?P<dynamic> \? (?: \{ (?: i(?P<width>\d+) )? \x20? (?: div=(?P<div>\d+) )? \} )? )
          | (?P<int> -?\d+ ) (?: / (?P<den> [1-9]\d* ) )?
          | (?P<all> _ )
          | (?P<poison> x ) )
        (?P<basis> (?: @\d+ )* )""",
    re.VERBOSE,
)
_SWIZZLE = re.compile(r"S<(\d+),(\d+),(-?\d+)>")
_NAME = re.compile(r"!?[A-Za-z_][\w.$]*")
_WORDS = re.compile(r"[^\s,<>()\[\]{}=\"!]+(?: [^\s,<>()\[\]{}=\"!]+)*")
_DTYPE = re.compile(r"(?:bf|tf|f|ui|si|i|u)(\d+)")


@dataclass(frozen=True, slots=True)
class IrType:
    """A type expression ``name<args>``; ``name`` keeps its ``!`` and ``args`` is None where there are no brackets."""

    name: str
    args: tuple[Argument, ...] | None = None

    def __str__(self) -> str:
        return self.name if self.args is None else f"{self.name}<{', '.join(map(str, self.args))}>"


@dataclass(frozen=True, slots=True)
class Quoted:
    """A term in quotes: ``"(4,8):(1,4)"``."""

    term: Term

    def __str__(self) -> str:
        return f'"{render(self.term)}"'


@dataclass(frozen=True, slots=True)
class Keyword:
    """``name = value``."""

    name: str
    value: Argument

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True, slots=True)
class Group:
    """Arguments in brackets of their own: ``(k, k)``, ``[8, 1]`` or ``<"...">``."""

    brackets: str
    members: tuple[Argument, ...]

    def __str__(self) -> str:
        return f"{self.brackets[0]}{', '.join(map(str, self.members))}{self.brackets[1]}"


Argument: TypeAlias = "IrType | Quoted | Keyword | Group | Swizzle | str"


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """What a type says.

    ``family`` is the name of the type without its dialect (``memref``, ``coord_tensor``, ``atom.tmem_load``,
    ``sm100.mma_bs``); ``dtype`` the element type as printed; ``align`` in bytes, None where the type does not print it
    (the natural alignment of ``dtype``); ``swizzle`` that of the pointer (acting on byte addresses) or else that of the
    composed layout. A coordinate tensor's layout is a `ComposedLayout` without inner function.
    """

    family: str
    layout: AnyLayout | None
    dtype: str | None
    space: str | None
    align: int | None
    swizzle: Swizzle | None
    raw: str
    tree: IrType

    @property
    def pointer_swizzle(self) -> Swizzle | None:
        """The swizzle of the pointer, which permutes byte addresses; None if the layout itself is swizzled."""
        args = self.tree.args or ()
        return next((arg for arg in args if isinstance(arg, Swizzle)), None)

    @property
    def byte_align(self) -> int:
        """Alignment in bytes: the printed one, or else the natural alignment of the element type."""
        return self.align if self.align is not None else max(1, (dtype_bits(self.dtype) or 8) // 8)

    def parameter(self, name: str) -> Argument | None:
        """The value of ``name = value`` among the arguments of the type or of its nested atom, or None."""
        return _keyword(self.tree, name)

    def __str__(self) -> str:
        return str(self.tree)


def _keyword(tree: IrType, name: str) -> Argument | None:
    for arg in tree.args or ():
        if isinstance(arg, Keyword) and arg.name == name:
            return arg.value
    nested = (_keyword(arg, name) for arg in tree.args or () if isinstance(arg, IrType))
    return next((value for value in nested if value is not None), None)


def dtype_bits(dtype: str | None) -> int | None:
    """Bits of an element (``f4E2M1FN`` 4, ``tf32`` 32, ``i1`` 8 since a Boolean is stored as a byte), or None."""
    found = _DTYPE.match(dtype or "")
    if found is None:
        return None
    bits = int(found[1])
    return 8 if bits == 1 else bits


class _Scanner:
    """Recursive descent over one text, so that every error has its column in the whole of it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, expected: str) -> LayoutSyntaxError:
        return LayoutSyntaxError(self.text, self.at + 1, expected)

    def accept(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.fail(repr(token))

    def whole(self, rule: Callable[[], T]) -> T:
        value = rule()
        if self.at != len(self.text):
            raise self.fail("the end of the text")
        return value

    def leaf(self) -> Leaf:
        found = _LEAF.match(self.text, self.at)
        if found is None:
            raise self.fail("an integer, '?', '_' or '('")
        if found["poison"]:
            raise PoisonedLayout(self.text, self.at + 1)
        leaf = self._value(found)
        if str(leaf) != found[0]:
            raise self.fail(f"{leaf} (the only spelling of this value)")
        self.at = found.end()
        return leaf

    @staticmethod
    def _value(found: re.Match[str]) -> Leaf:
        value: int | Fraction | Dynamic
        if found["all"]:
            return Wildcard.ALL
        if found["dynamic"]:
            value = Dynamic(int(found["div"] or 1), int(found["width"] or 32))
        else:
            value = Fraction(int(found["int"]), int(found["den"])) if found["den"] else int(found["int"])
        if not found["basis"]:
            return value
        return ScaledBasis(value, tuple(int(mode) for mode in reversed(found["basis"][1:].split("@"))))

    def nested(self) -> Tree:
        if not self.accept("("):
            return self.leaf()
        members: list[Tree] = []
        while not self.accept(")"):
            if members:
                self.expect(",")
            members.append(self.nested())
        return tuple(members)

    def tile(self) -> Tile:
        modes: list[Layout | Tile | Wildcard] = []
        self.expect("[")
        while not self.accept("]"):
            if modes:
                self.expect(";")
            mode = self.tile() if self.text.startswith("[", self.at) else self.plain()
            if not isinstance(mode, Layout | Tile | Wildcard):
                raise self.fail("a layout, a tile or '_'")
            modes.append(mode)
        return Tile(tuple(modes))

    def plain(self) -> Tree | Layout:
        shape = self.nested()
        if not self.accept(":"):
            return shape
        at = self.at
        stride = self.nested()
        try:
            return Layout(shape, stride)
        except LayoutError:
            self.at = at
            raise self.fail("a stride that nests like its shape") from None

    def swizzle(self) -> Swizzle | None:
        found = _SWIZZLE.match(self.text, self.at)
        if found is None:
            return None
        try:
            swizzle = Swizzle(int(found[1]), int(found[2]), int(found[3]))
        except LayoutError:
            raise self.fail("a swizzle S<bits,base,shift> with |shift| >= bits") from None
        self.at = found.end()
        return swizzle

    def term(self) -> Term:
        if self.text.startswith("[", self.at):
            return self.tile()
        first = self.swizzle() or self.plain()
        if not self.accept(" o "):
            return first
        if not isinstance(first, Swizzle | Layout):
            return ComposedLayout(None, first, self.outer())
        offset = self.nested()
        self.expect(" o ")
        return ComposedLayout(first, offset, self.outer())

    def outer(self) -> AnyLayout:
        at, outer = self.at, self.term()
        if not isinstance(outer, Layout | ComposedLayout):
            self.at = at
            raise self.fail("a layout (a composition is written inner o offset o outer)")
        return outer

    def argument(self) -> Argument:
        if self.accept('"'):
            quoted = Quoted(self.term())
            self.expect('"')
            return quoted
        for brackets in ("()", "[]", "<>"):
            if self.accept(brackets[0]):
                return Group(brackets, self.arguments(brackets[1]))
        swizzle = self.swizzle()
        if swizzle is not None:
            return swizzle
        if self.text.startswith("!", self.at):
            return self.type()
        found = _WORDS.match(self.text, self.at)
        if found is None:
            raise self.fail("a type, a word or a quoted layout")
        self.at = found.end()
        if self.accept(" = "):
            return Keyword(found[0], self.argument())
        return IrType(found[0], self.arguments(">")) if self.accept("<") else found[0]

    def arguments(self, closing: str) -> tuple[Argument, ...]:
        members: list[Argument] = []
        while not self.accept(closing):
            if members:
                self.expect(", ")
            members.append(self.argument())
        return tuple(members)

    def type(self) -> IrType:
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self.fail("a type such as !cute.layout<...>")
        self.at = found.end()
        return IrType(found[0], self.arguments(">") if self.accept("<") else None)


@lru_cache(maxsize=65536)
def parse_term(text: str) -> Term:
    """Any term of the notation: a tree, a layout, a composed layout, a swizzle or a tile.

    Raises `LayoutSyntaxError` (with the column) or `PoisonedLayout`.
    """
    scanner = _Scanner(text)
    return scanner.whole(scanner.term)


@lru_cache(maxsize=65536)
def parse_layout(text: str) -> AnyLayout:
    """A layout alone, without its type: ``(4,8):(1,4)``, ``S<3,4,3> o 0 o (8,64):(64,1)``, ``(0,?) o (4):(1@1)``.

    Raises `LayoutSyntaxError` (with the column) or `PoisonedLayout`.
    """
    scanner = _Scanner(text)
    return scanner.whole(scanner.outer)


@lru_cache(maxsize=65536)
def parse_type(text: str) -> TypeInfo:
    """A whole type as ``str(obj.type)`` prints it; runs of white space count as one blank.

    Raises `LayoutSyntaxError` (with the column) or `PoisonedLayout`.
    """
    raw = " ".join(text.split())
    scanner = _Scanner(raw)
    tree = scanner.whole(scanner.type)
    dialect, _, name = tree.name.partition(".")
    family = name if dialect in ("!cute", "!cute_nvgpu") else tree.name.removeprefix("!")
    args = tree.args or ()
    layout = _layout_of(family, args)
    words = [arg for arg in args if isinstance(arg, str)]
    pointer = next((arg for arg in args if isinstance(arg, Swizzle)), None)
    inner = layout.inner if isinstance(layout, ComposedLayout) else None
    align = next((arg.args[0] for arg in args if isinstance(arg, IrType) and arg.name == "align" and arg.args), None)
    return TypeInfo(
        family=family,
        layout=layout,
        dtype=_dtype_of(family, args),
        space=next((word for word in words if word in SPACES), None),
        align=int(align) if isinstance(align, str) else None,
        swizzle=_swizzle_of(args) or pointer or (inner if isinstance(inner, Swizzle) else None),
        raw=raw,
        tree=tree,
    )


def _layout_of(family: str, args: tuple[Argument, ...]) -> AnyLayout | None:
    terms = [arg.term for arg in args if isinstance(arg, Quoted)]
    if family == "coord_tensor" and len(terms) == 2 and isinstance(terms[1], Layout | ComposedLayout):
        offset = terms[0]
        if not isinstance(offset, Layout | ComposedLayout | Swizzle | Tile):
            return ComposedLayout(None, offset, terms[1])
    if family in ("layout", "composed_layout", "memref", "smem_desc_view") and terms:
        last = terms[-1]
        return last if isinstance(last, Layout | ComposedLayout) else None
    return None


def _swizzle_of(args: tuple[Argument, ...]) -> Swizzle | None:
    return next((arg.term for arg in args if isinstance(arg, Quoted) and isinstance(arg.term, Swizzle)), None)


def _dtype_of(family: str, args: tuple[Argument, ...]) -> str | None:
    if family == "vector" and args:
        return str(args[0]).rpartition("x")[2]
    if family in ("memref", "ptr", "smem_desc_view") and args:
        return str(args[0])
    if family.startswith("atom."):
        return next((arg for arg in args if isinstance(arg, str) and dtype_bits(arg)), None)
    return None
