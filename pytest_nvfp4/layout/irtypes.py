"""CuTe DSL types: the type expression, and the properties that layouts are compared by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from pytest_nvfp4.layout.errors import LayoutSyntaxError
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle, Term, Tiler, render

SPACES = frozenset({"gmem", "smem", "rmem", "tmem", "generic", "dsmem"})

_BYTES = re.compile(r"[1-9][0-9]{0,9}")
_DTYPE = re.compile(r"(?:bf|tf|f|ui|si|i|u)(\d+)")


@dataclass(frozen=True, slots=True)
class IrType:
    """Type expression ``name<args>``; ``name`` includes its ``!`` and ``args`` is None without brackets."""

    name: str
    args: tuple[Argument, ...] | None = None

    def __str__(self) -> str:
        return self.name if self.args is None else f"{self.name}<{', '.join(map(str, self.args))}>"


@dataclass(frozen=True, slots=True)
class Quoted:
    """Quoted term: ``"(4,8):(1,4)"``."""

    term: Term

    def __str__(self) -> str:
        return f'"{render(self.term)}"'


@dataclass(frozen=True, slots=True)
class Keyword:
    """Keyword argument ``name = value``."""

    name: str
    value: Argument

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True, slots=True)
class ArgumentGroup:
    """Bracketed arguments: ``(k, k)``, ``[8, 1]`` or ``<"...">``."""

    brackets: str
    members: tuple[Argument, ...]

    def __str__(self) -> str:
        return f"{self.brackets[0]}{', '.join(map(str, self.members))}{self.brackets[1]}"


Argument: TypeAlias = "IrType | Quoted | Keyword | ArgumentGroup | Swizzle | str"


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """Properties of a type.

    ``family`` is the name of the type without its dialect (``memref``, ``coord_tensor``, ``atom.tmem_load``,
    ``sm100.mma_bs``), ``dtype`` the element type as printed, ``align`` the printed alignment in bytes (None: the
    natural alignment of ``dtype``), ``swizzle`` that of the pointer (acting on byte addresses) or else of the composed
    layout. A coordinate tensor's layout is a `ComposedLayout` without inner function.
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
        """Swizzle of the pointer, which permutes byte addresses; None if the layout itself is swizzled."""
        args = self.tree.args or ()
        return next((arg for arg in args if isinstance(arg, Swizzle)), None)

    @property
    def byte_align(self) -> int:
        """Alignment in bytes: the printed one, or else the natural alignment of the element type."""
        return self.align if self.align is not None else max(1, (dtype_bits(self.dtype) or 8) // 8)

    def parameter(self, name: str) -> Argument | None:
        """Return the value of ``name = value`` among the arguments of the type or of its nested atom, or None."""
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
    """Return the bits of an element (``f4E2M1FN`` 4, ``tf32`` 32, ``i1`` 8 as stored in a byte), or None."""
    match = _DTYPE.match(dtype or "")
    if match is None:
        return None
    bits = int(match[1])
    return 8 if bits == 1 else bits


def type_info(tree: IrType, raw: str) -> TypeInfo:
    """Extract the properties of a type expression; raises `LayoutSyntaxError` for an alignment that is not a number."""
    dialect, _, name = tree.name.partition(".")
    family = name if dialect in ("!cute", "!cute_nvgpu") else tree.name.removeprefix("!")
    args = tree.args or ()
    layout = _layout_of(family, args)
    pointer = next((arg for arg in args if isinstance(arg, Swizzle)), None)
    inner = layout.inner if isinstance(layout, ComposedLayout) else None
    return TypeInfo(
        family=family,
        layout=layout,
        dtype=_dtype_of(family, args),
        space=next((arg for arg in args if isinstance(arg, str) and arg in SPACES), None),
        align=_align_of(args, raw),
        swizzle=_swizzle_of(args) or pointer or (inner if isinstance(inner, Swizzle) else None),
        raw=raw,
        tree=tree,
    )


def _align_of(args: tuple[Argument, ...], raw: str) -> int | None:
    printed = next((arg for arg in args if isinstance(arg, IrType) and arg.name == "align"), None)
    if printed is None:
        return None
    if printed.args is None or not _BYTES.fullmatch(text := ", ".join(map(str, printed.args))):
        raise LayoutSyntaxError(raw, raw.index("align") + 1, "align<bytes>, as in align<128>,")
    return int(text)


def _layout_of(family: str, args: tuple[Argument, ...]) -> AnyLayout | None:
    terms = [arg.term for arg in args if isinstance(arg, Quoted)]
    if family == "coord_tensor" and len(terms) == 2 and isinstance(terms[1], Layout | ComposedLayout):
        offset = terms[0]
        if not isinstance(offset, Layout | ComposedLayout | Swizzle | Tiler):
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
