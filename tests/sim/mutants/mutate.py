"""One mistake in a kernel's PTX, named by opcode, operand and the user's Python line: never by a line of the PTX.

``Listing`` finds instructions (``Site``) the same way whatever DSL version wrote the PTX: by the leading parts of the
opcode, by the text of the user's line, by their order. A site makes edits of the text, ``Listing.edited`` applies them.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_nvfp4.sim.ptx.operands import split
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Instruction

_BODY = re.compile(r"^\{", re.MULTILINE)
_FRESH = (
    "\n\t.reg .pred %mutp<16>;\n\t.reg .b16 %muth<16>;\n\t.reg .b32 %mutr<16>;\n\t.reg .b64 %mutd<16>;"
    "\n\t.reg .f32 %mutf<16>;\n"
)
_STATEMENT = re.compile(r"(@\s*!?\s*\S+\s+)?([a-z][\w.:]*)\s*(.*)\Z", re.DOTALL)
_ADDRESS = re.compile(r"\[\s*([^,+\]]+?)\s*(?:\+\s*(-?\d+))?\s*\]\Z")
_LETTER = {"p": "pred", "h": "b16", "r": "b32", "d": "b64", "f": "f32"}


class NoSuchSite(LookupError):
    """The PTX has not the instruction that a mutant changes: the mutant, or the kernel, is out of date."""


@dataclass(frozen=True)
class Edit:
    """Characters ``start`` to ``end`` of the PTX become ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Site:
    """An instruction of the listing and the characters of its statement, the semicolon included."""

    listing: Listing
    instruction: Instruction
    start: int
    end: int

    @property
    def _parts(self) -> tuple[str, str, list[str]]:
        found = _STATEMENT.match(self.listing.ptx[self.start : self.end - 1].strip())
        assert found is not None
        guard, opcode, rest = found.groups()
        operands = split(rest) if rest.strip() else []
        assert operands is not None
        return (guard or "").strip(), opcode, [piece.strip() for piece in operands]

    @property
    def operands(self) -> list[str]:
        """The operands as the PTX spells them."""
        return self._parts[2]

    @property
    def source(self) -> str:
        """The user's line, without indentation; empty if the PTX names none."""
        where = self.instruction.location
        return linecache.getline(where.file, where.line).strip() if where is not None else ""

    def _become(self, guard: str, opcode: str, operands: Sequence[str], *, before: str = "") -> Edit:
        statement = f"{guard} {opcode} {', '.join(operands)};".strip()
        return Edit(self.start, self.end, f"{before} {statement}" if before else statement)

    # ---- edits ---------------------------------------------------------------------------------------------------

    def drop(self) -> Edit:
        """Without this instruction."""
        return Edit(self.start, self.end, "")

    def instead(self, text: str) -> Edit:
        """Other text in its place."""
        return Edit(self.start, self.end, text)

    def before(self, text: str) -> Edit:
        """Something more before it."""
        return Edit(self.start, self.end, text + " " + self.listing.ptx[self.start : self.end])

    def after(self, text: str) -> Edit:
        """Something more after it."""
        return Edit(self.start, self.end, self.listing.ptx[self.start : self.end] + " " + text)

    def opcode(self, old: str, new: str) -> Edit:
        """Part of the opcode replaced."""
        guard, opcode, operands = self._parts
        if old not in opcode:
            raise NoSuchSite(f"{old} is no part of {opcode}")
        return self._become(guard, opcode.replace(old, new, 1), operands)

    def set(self, number: int, text: str) -> Edit:
        """Another operand ``number`` (from 0; negative from the end)."""
        guard, opcode, operands = self._parts
        operands[number] = text
        return self._become(guard, opcode, operands)

    def swap(self, one: int, other: int) -> Edit:
        """Two operands exchanged."""
        guard, opcode, operands = self._parts
        operands[one], operands[other] = operands[other], operands[one]
        return self._become(guard, opcode, operands)

    def shift(self, number: int, by: int) -> Edit:
        """The address operand ``number`` moved by ``by``."""
        guard, opcode, operands = self._parts
        found = _ADDRESS.match(operands[number])
        if found is None:
            raise NoSuchSite(f"{operands[number]} is no address")
        operands[number] = f"[{found[1]}+{int(found[2] or 0) + by}]"
        return self._become(guard, opcode, operands)

    def compute(self, number: int, text: str, *, kind: str) -> Edit:
        """Operand ``number`` put through ``text``, in which ``$`` is the operand and ``#`` its new register.

        ``kind`` is the new register's: p, h, r, d or f. An address operand ``[x]`` becomes ``[#]``.
        """
        guard, opcode, operands = self._parts
        old = operands[number]
        found = _ADDRESS.match(old)
        inner = found[1] if found is not None else old
        name = f"%mut{kind}0"
        before = text.replace("$", inner).replace("#", name)
        offset = f"+{found[2]}" if found is not None and found[2] else ""
        operands[number] = f"[{name}{offset}]" if found is not None else name
        return self._become(guard, opcode, operands, before=before)

    def coordinate(self, axis: int, by: int, *, number: int = 1) -> Edit:
        """Coordinate ``axis`` of the tensor operand ``[map, {c0, c1, ...}]`` moved by ``by`` elements."""
        guard, opcode, operands = self._parts
        found = re.match(r"\[(.*),\s*\{(.*)\}\s*\]\Z", operands[number], re.DOTALL)
        if found is None:
            raise NoSuchSite(f"{operands[number]} has no coordinates")
        coordinates = [piece.strip() for piece in found[2].split(",")]
        before = f"add.s32 %mutr0, {coordinates[axis]}, {by};"
        coordinates[axis] = "%mutr0"
        operands[number] = f"[{found[1]}, {{{', '.join(coordinates)}}}]"
        return self._become(guard, opcode, operands, before=before)

    def unguard(self) -> Edit:
        """Done whatever its guard says."""
        guard, opcode, operands = self._parts
        if not guard:
            raise NoSuchSite(f"{opcode} has no guard")
        return self._become("", opcode, operands)

    def invert(self) -> Edit:
        """The opposite guard."""
        guard, opcode, operands = self._parts
        if not guard:
            raise NoSuchSite(f"{opcode} has no guard")
        name = guard[1:].strip()
        return self._become(f"@{name[1:].strip()}" if name[0] == "!" else f"@!{name}", opcode, operands)


class Listing:
    """The PTX of one kernel.

    Args:
        ptx: The module.
        kernel: Part of the kernel's name, if it has several.
    """

    def __init__(self, ptx: str, kernel: str = "") -> None:
        self.ptx = ptx
        module = parse(ptx)
        names = [name for name in module.kernels if kernel in name]
        if len(names) != 1:
            raise NoSuchSite(f"{len(names)} kernels have {kernel!r} in their name: {', '.join(module.kernels)}")
        self.name = names[0]
        starts = [0]
        for found in re.finditer("\n", ptx):
            starts.append(found.end())
        self.sites: list[Site] = []
        cursor = 0
        for instruction in module.kernels[self.name].instructions:
            cursor = max(cursor, starts[instruction.ptx_line - 1])
            first = instruction.text.split()[0]
            start = ptx.index(first, cursor)
            cursor = ptx.index(";", start) + 1
            self.sites.append(Site(self, instruction, start, cursor))
        self._declare = ptx.index("{", ptx.index(")", ptx.index(f".entry {self.name}"))) + 1

    def all(self, opcode: str, *, source: str = "", having: str = "") -> list[Site]:
        """Sites whose opcode starts with these parts, whose user's line holds ``source``, whose text holds ``having``.

        Raises:
            NoSuchSite: there is none.
        """
        parts = tuple(opcode.split("."))
        found = [
            site
            for site in self.sites
            if site.instruction.parts[: len(parts)] == parts
            and (not source or source in site.source)
            and (not having or having in site.instruction.text)
        ]
        if not found:
            raise NoSuchSite(f"no {opcode} at a line with {source!r}" + (f" with {having!r}" if having else ""))
        return found

    def one(self, opcode: str, number: int | None = None, *, source: str = "", having: str = "") -> Site:
        """The only such site, or the one of this number.

        Raises:
            NoSuchSite: there are none, or several and no number was given.
        """
        found = self.all(opcode, source=source, having=having)
        if number is None and len(found) > 1:
            raise NoSuchSite(f"{len(found)} {opcode} at lines with {source!r}")
        try:
            return found[number or 0]
        except IndexError:
            raise NoSuchSite(f"{len(found)} {opcode} at lines with {source!r}, and not number {number}") from None

    def previous(self, site: Site, opcode: str) -> Site:
        """The nearest such instruction above."""
        return self._near(site, opcode, range(site.instruction.index - 1, -1, -1))

    def following(self, site: Site, opcode: str) -> Site:
        """The nearest such instruction below."""
        return self._near(site, opcode, range(site.instruction.index + 1, len(self.sites)))

    def _near(self, site: Site, opcode: str, order: Iterable[int]) -> Site:
        parts = tuple(opcode.split("."))
        for index in order:
            if self.sites[index].instruction.parts[: len(parts)] == parts:
                return self.sites[index]
        raise NoSuchSite(f"no {opcode} beside {site.instruction.text}")

    def definition(self, site: Site, operand: str) -> Site:
        """The nearest instruction above that writes this register."""
        for index in range(site.instruction.index - 1, -1, -1):
            other = self.sites[index]
            if other.operands and operand in re.split(r"[\s{},|]+", other.operands[0]):
                return other
        raise NoSuchSite(f"nothing above writes {operand}")

    def writers(self, operand: str) -> list[Site]:
        """All instructions that write this register, in order."""
        return [site for site in self.sites if site.operands and operand in re.split(r"[\s{},|]+", site.operands[0])]

    def edited(self, edits: Edit | Sequence[Edit]) -> str:
        """The PTX with these edits, which must not overlap, and with registers ``%mutp0``, ``%muth0`` ... declared."""
        made = [edits] if isinstance(edits, Edit) else list(edits)
        made.append(Edit(self._declare, self._declare, _FRESH))
        text = self.ptx
        end = len(text) + 1
        for edit in sorted(made, key=lambda edit: -edit.start):
            if edit.end > end:
                raise ValueError("edits overlap")
            text = text[: edit.start] + edit.text + text[edit.end :]
            end = edit.start
        return text


Mutation = Callable[[Listing], "Edit | Sequence[Edit]"]
"""What makes a mutant: the edits of the kernel's PTX."""
