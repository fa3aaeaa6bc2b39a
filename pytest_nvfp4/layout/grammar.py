"""Parser of CuTe DSL's type texts as ``str(obj.type)`` prints them (nvidia-cutlass-dsl 4.4.0 and 4.8.1).

`parse_type` reads a whole type (``!cute.memref<f16, gmem, align<32>, "(128,?):(?{div=32},1)">``) and `parse_layout`
a layout alone. Parsed values print back to the same text. Both functions are cached, because types repeat often.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from pytest_nvfp4.layout.errors import LayoutError, LayoutSyntaxError, PoisonedLayout
from pytest_nvfp4.layout.irtypes import (
    Argument,
    ArgumentGroup,
    IrType,
    Keyword,
    Quoted,
    TypeInfo,
    type_info,
)
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle, Term, Tiler
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, Tree, Wildcard

T = TypeVar("T")
MAX_DEPTH = 60

_LEAF = re.compile(
    r"""(?: (?P<dynamic> \? (?: \{ (?: i(?P<width>\d{1,4}) )? \x20? (?: div=(?P<div>\d{1,30}) )? \} )? )
          | (?P<int> -?\d{1,30} ) (?: / (?P<den> [1-9]\d{0,29} ) )?
          | (?P<all> _ )
          | (?P<poison> x ) )
        (?P<basis> (?: @\d{1,9} )* )""",
    re.VERBOSE | re.ASCII,
)
_SWIZZLE = re.compile(r"S<(\d{1,3}),(\d{1,3}),(-?\d{1,3})>", re.ASCII)
_NAME = re.compile(r"!?[A-Za-z_][\w.$]*")
_WORDS = re.compile(r"[^\s,<>()\[\]{}=\"!]+(?: [^\s,<>()\[\]{}=\"!]+)*")


class _Scanner:
    """Recursive-descent parser of one text; every error has its column in the whole text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

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

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count a level of nesting, so that a damaged text cannot exhaust the stack."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"at most {MAX_DEPTH} levels of nesting")
        yield
        self.depth -= 1

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
            with self.deeper():
                members.append(self.nested())
        return tuple(members)

    def tile(self) -> Tiler:
        modes: list[Layout | Tiler | Wildcard] = []
        self.expect("[")
        while not self.accept("]"):
            if modes:
                self.expect(";")
            with self.deeper():
                mode = self.tile() if self.text.startswith("[", self.at) else self.plain()
            if not isinstance(mode, Layout | Tiler | Wildcard):
                raise self.fail("a layout, a tile or '_'")
            modes.append(mode)
        return Tiler(tuple(modes))

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
        at = self.at
        with self.deeper():
            outer = self.term()
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
                return ArgumentGroup(brackets, self.arguments(brackets[1]))
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
            with self.deeper():
                return Keyword(found[0], self.argument())
        return IrType(found[0], self.arguments(">")) if self.accept("<") else found[0]

    def arguments(self, closing: str) -> tuple[Argument, ...]:
        members: list[Argument] = []
        while not self.accept(closing):
            if members:
                self.expect(", ")
            with self.deeper():
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
    """Parse any term of the notation: a tree, a layout, a composed layout, a swizzle or a tiler.

    Raises `LayoutSyntaxError` (with the column) or `PoisonedLayout`.
    """
    scanner = _Scanner(text)
    return scanner.whole(scanner.term)


@lru_cache(maxsize=65536)
def parse_layout(text: str) -> AnyLayout:
    """Parse a layout without a type: ``(4,8):(1,4)``, ``S<3,4,3> o 0 o (8,64):(64,1)``, ``(0,?) o (4):(1@1)``.

    Raises `LayoutSyntaxError` (with the column) or `PoisonedLayout`.
    """
    scanner = _Scanner(text)
    return scanner.whole(scanner.outer)


def parse_plain_layout(text: str) -> Layout:
    """Return a layout that has neither a swizzle nor an inner layout.

    Raises `LayoutError` as `parse_layout` does, or for a composed layout.
    """
    layout = parse_layout(text)
    if not isinstance(layout, Layout):
        raise LayoutError(f"{text}: a composed layout; give a plain layout, shape:stride")
    return layout


@lru_cache(maxsize=65536)
def parse_type(text: str) -> TypeInfo:
    """Return the parsed type of a ``str(obj.type)`` text; runs of white space count as one blank.

    Raises `LayoutSyntaxError` (with the column) or `PoisonedLayout`.
    """
    raw = " ".join(text.split())
    scanner = _Scanner(raw)
    return type_info(scanner.whole(scanner.type), raw)
