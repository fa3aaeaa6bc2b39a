"""Text format of a layout snapshot: a header, and one line per named layout, for review by people.

    # nvfp4-layouts 1
    # kernel   kernels/nvfp4_group_gemm/sm100.py
    # dsl      4.8.1

    kernel.sA  S<3,4,3> o 0 o (128,64):(256,1)  !cute.memref<...>  smem  128
    # end 1

Fields (name, canonical text, raw type, space, alignment in bytes) are separated by two blanks without
padding, so that a changed line is a changed layout. ``-`` is an empty field and ``=`` a raw type equal to its canonical
text. The last line counts the records, so that a truncated file is detected.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from pytest_nvfp4.isolation.door.versions import other_version
from pytest_nvfp4.layout.canonical import canonical_text
from pytest_nvfp4.layout.errors import LayoutError, LayoutSyntaxError, ListingError, PoisonedLayout
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import TypeInfo

VERSION = 1
_NAME = "# nvfp4-layouts "
FORMAT = f"{_NAME}{VERSION}"
_END = re.compile(r"# end (\d{1,9})")
_HEADER = re.compile(r"# (\S+) +(\S.*)")
_CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")
_DIGITS = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key that puts ``x#2`` before ``x#10``: digits compare as numbers, the rest as text."""
    parts = ((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part)
    return tuple(parts), name


_PAIRS = {">": "<", ")": "(", "]": "["}


def _is_whole_type(text: str) -> bool:
    """Return whether a text is a complete type (``!...>``, MLIR's ``tensor<...>``): brackets and quotes close."""
    if not text.startswith(("!", "tensor<")) or text.count('"') % 2:
        return False
    open_brackets: list[str] = []
    for character in text.replace("->", ""):
        if character in _PAIRS.values():
            open_brackets.append(character)
        elif character in _PAIRS and (not open_brackets or open_brackets.pop() != _PAIRS[character]):
            return False
    return not open_brackets


@dataclass(frozen=True)
class Record:
    """One named layout: ``name`` (``scope.variable``) and the type text with collapsed white space.

    The derived properties raise `LayoutSyntaxError` for a text that is not a type and `PoisonedLayout` for ``x``. A
    complete type in an unknown spelling has no ``info`` and is its own canonical text, so that a new spelling of the
    DSL does not break snapshots. Raises `LayoutError` for a name that does not fit a line.
    """

    name: str
    raw: str

    def __post_init__(self) -> None:
        if not self.name or self.name != "".join(self.name.split()) or self.name.startswith(("#", *_CONFLICT)):
            raise LayoutError(
                f"layout name {self.name!r}: a name has no blanks, is not empty and does not begin with '#'; "
                "use scope.variable, as in kernel.tCgA"
            )
        object.__setattr__(self, "raw", " ".join(self.raw.split()))

    @cached_property
    def info(self) -> TypeInfo:
        """Parsed type."""
        try:
            return parse_type(self.raw)
        except PoisonedLayout as error:
            raise PoisonedLayout(error.text, error.column, name=self.name) from None
        except LayoutSyntaxError as error:
            raise LayoutSyntaxError(error.text, error.column, error.expected, name=self.name) from None

    @cached_property
    def readable(self) -> TypeInfo | None:
        """Parsed type, or None for a complete type outside the grammar, which is compared as text.

        Raises `LayoutSyntaxError` for a damaged text: not a type, or unbalanced brackets or quotes.
        """
        try:
            return self.info
        except LayoutSyntaxError:
            if _is_whole_type(self.raw):
                return None
            raise

    @property
    def unreadable(self) -> str | None:
        """Reason why the type is unreadable, or None."""
        try:
            _ = self.canonical
        except LayoutError as error:
            return str(error)
        return None

    @cached_property
    def canonical(self) -> str:
        """Canonical text (`pytest_nvfp4.layout.canonical.canonical_text`); the raw text of an unknown type."""
        return self.raw if self.readable is None else canonical_text(self.readable)

    @cached_property
    def space(self) -> str | None:
        """Address space (``gmem``, ``smem``, ``rmem``, ``tmem``, ``generic``), or None."""
        return None if self.readable is None else self.readable.space

    @cached_property
    def align(self) -> int | None:
        """Printed alignment in bytes, or None."""
        return None if self.readable is None else self.readable.align

    @cached_property
    def dtype(self) -> str | None:
        """Element type as CuTe DSL prints it, or None."""
        return None if self.readable is None else self.readable.dtype

    @cached_property
    def line(self) -> str:
        """Line of the listing."""
        raw = "=" if self.raw == self.canonical else self.raw
        align = "-" if self.align is None else str(self.align)
        return "  ".join((self.name, self.canonical, raw, self.space or "-", align))


@dataclass(frozen=True)
class Listing:
    """Header and records, sorted by name.

    Raises `LayoutError` for a header that does not fit its lines or for two records of the same name.
    """

    header: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Record, ...] = ()

    def __post_init__(self) -> None:
        for key, value in self.header.items():
            if not _fits_a_header(key, value):
                raise LayoutError(
                    f"layout snapshot header {key!r}: {value!r}: a key is one word other than 'end', and a value is "
                    "one line of text without double blanks"
                )
        object.__setattr__(self, "header", MappingProxyType(dict(self.header)))
        object.__setattr__(self, "records", tuple(sorted(self.records, key=lambda record: natural_key(record.name))))
        for first, second in itertools.pairwise(self.records):
            if first.name == second.name:
                raise LayoutError(f"layout name {first.name!r} occurs twice; Listing.from_pairs numbers repeated names")

    @cached_property
    def by_name(self) -> Mapping[str, Record]:
        """Records by name."""
        return MappingProxyType({record.name: record for record in self.records})

    @property
    def dsl(self) -> str | None:
        """Version of CuTe DSL that made the listing; it is compared separately."""
        return self.header.get("dsl")

    @classmethod
    def from_pairs(cls, header: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> Listing:
        """Return a listing from captured ``(name, type text)`` pairs in the order of appearance.

        Repeated pairs are dropped. A name with several types is a reassigned variable: its further types are
        ``name#2``, ``name#3``, ... in the order of appearance.
        """
        types: dict[str, list[str]] = {}
        for name, text in pairs:
            raw = " ".join(text.split())
            seen = types.setdefault(name, [])
            if raw not in seen:
                seen.append(raw)
        records = {name: Record(name, raws[0]) for name, raws in types.items()}
        for name, raws in types.items():
            free = (numbered for number in itertools.count(2) if (numbered := f"{name}#{number}") not in types)
            records.update((numbered, Record(numbered, raw)) for raw, numbered in zip(raws[1:], free, strict=False))
        return cls(header, tuple(records.values()))

    def render(self) -> str:
        """Return the text of the file; raises `PoisonedLayout` if a record has no canonical text."""
        width = max(map(len, self.header), default=0)
        lines = [FORMAT, *(f"# {key:<{width}}  {value}" for key, value in self.header.items()), ""]
        lines += [record.line for record in self.records]
        return "\n".join([*lines, f"# end {len(self.records)}", ""])

    @classmethod
    def parse(cls, text: str) -> Listing:
        """Return the listing of a text that `render` wrote.

        Raises `ListingError` with the line for any other text: conflict markers, a truncated file, a field that does
        not follow from its raw type, names out of order or repeated.
        """
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if line.startswith(_CONFLICT):
                raise ListingError(number, f"a merge conflict marker {line[:7]!r}")
        stated = lines[0].rstrip("\r")
        if stated != FORMAT and stated.startswith(_NAME):
            problem = other_version(stated.removeprefix(_NAME), VERSION)
            raise ListingError(1, f"the snapshot {problem}")
        if stated != FORMAT:
            raise ListingError(1, f"{lines[0][:40]!r} where {FORMAT!r} belongs")
        if "\r" in text:
            raise ListingError(1, "carriage returns; the file has plain line feeds")
        if text.endswith("\n"):
            lines.pop()
        header, start = _parse_header(lines)
        count = _END.fullmatch(lines[-1])
        if count is None:
            raise ListingError(len(lines), "no last line '# end N': the file is truncated")
        records = tuple(_parse_line(line, number) for number, line in enumerate(lines[start:-1], start + 1))
        if int(count[1]) != len(records):
            raise ListingError(len(lines), f"'{lines[-1]}' after {len(records)} records: lines were lost or added")
        for number, (first, second) in enumerate(itertools.pairwise(records), start + 2):
            if natural_key(first.name) >= natural_key(second.name):
                raise ListingError(number, f"name {second.name!r} after {first.name!r}: out of order or twice")
        return cls(header, records)


def _fits_a_header(key: str, value: str) -> bool:
    one_word = bool(key) and key == "".join(key.split()) and key != "end"
    return one_word and bool(value) and value == " ".join(value.split())


def _parse_header(lines: list[str]) -> tuple[dict[str, str], int]:
    header: dict[str, str] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            return header, number
        found = _HEADER.fullmatch(line)
        if found is None or found[1] in header or not _fits_a_header(found[1], found[2]):
            raise ListingError(number, f"{line[:60]!r} where a header line '# key   value' or a blank line belongs")
        header[found[1]] = found[2]
    raise ListingError(len(lines), "no blank line after the header: the file is truncated")


def _parse_line(line: str, number: int) -> Record:
    fields = line.split("  ")
    if len(fields) != 5 or not all(part and part == part.strip() for part in fields):
        raise ListingError(number, f"{line[:80]!r} where 'name  canonical  raw  space  align' belongs")
    name, canonical, raw, _, _ = fields
    try:
        record = Record(name, canonical if raw == "=" else raw)
        expected = record.line
    except LayoutError as error:
        raise ListingError(number, str(error)) from error
    if expected != line:
        raise ListingError(number, f"{line!r} does not follow from its raw type, which gives {expected!r}")
    return record
