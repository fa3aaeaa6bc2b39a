"""Edits of a kernel's source, written as diffs, and what the checks have to say of the edited kernel.

A file of edits is a list of entries; hunks have no line numbers, and their old lines stand once in the kernel::

    === TOPIC: NAME                      or  === refactoring: NAME
    check: races                         the check that reports the mistake
    line: cute.copy(tma_atom_a           part of the kernel's line that the report names; empty for none
    first: no barrier orders ...         first line of the report
    missed: why no check finds it        in place of the three, if none does
    rename: old -> new                   everywhere
    @@
     context
    -old line
    +new line
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REFACTORING = "refactoring"


@dataclass(frozen=True)
class Edit:
    """A mistake, or a refactoring that no check may object to.

    Attributes:
        topic: The class of the mistake, or ``refactoring``.
        name: What an author would call it.
        fields: ``check``, ``line``, ``first`` and ``missed`` of a mistake.
        renames: Texts that are replaced everywhere.
        hunks: Lines that are replaced, in this order.
    """

    topic: str
    name: str
    fields: dict[str, str] = field(default_factory=dict)
    renames: list[tuple[str, str]] = field(default_factory=list)
    hunks: list[tuple[list[str], list[str]]] = field(default_factory=list)

    @property
    def check(self) -> str:
        """The check that reports it; empty if none does."""
        return self.fields.get("check", "")

    @property
    def line(self) -> str:
        """Part of the line that the report names."""
        return self.fields.get("line", "")

    @property
    def first(self) -> str:
        """First line of the report."""
        return self.fields.get("first", "")

    @property
    def missed(self) -> str:
        """Why no check finds it; empty if one does."""
        return self.fields.get("missed", "")

    def applied(self, text: str) -> str:
        """Return the edited text. Raises ValueError if the kernel does not have what is replaced exactly once."""
        for old, new in self.renames:
            if old not in text:
                raise ValueError(f"{self.name}: {old!r} does not stand in the kernel")
            text = text.replace(old, new)
        lines = text.split("\n")
        for before, after in self.hunks:
            size = len(before)
            places = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == before]
            if len(places) != 1:
                block = "\n".join(before)
                raise ValueError(f"{self.name}: these lines stand {len(places)} times in the kernel:\n{block}")
            lines[places[0] : places[0] + size] = after
        return "\n".join(lines)


def parse(path: Path) -> Iterator[Edit]:
    """Yield the edits of a file. Raises ValueError for a line that is none of the above."""
    edit: Edit | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("=== "):
            if edit is not None:
                yield edit
            topic, _, name = line.removeprefix("=== ").partition(": ")
            edit = Edit(topic, name)
            continue
        if edit is None:
            raise ValueError(f"{path}:{number}: an entry begins with ===")
        if line == "@@":
            edit.hunks.append(([], []))
        elif edit.hunks:
            for sign, side in zip("-+", edit.hunks[-1], strict=True):
                if line[:1] in (sign, " ", ""):
                    side.append(line[1:])
            if line[:1] not in ("-", "+", " ", ""):
                raise ValueError(f"{path}:{number}: a line of a hunk begins with a space, - or +")
        elif line.startswith("rename: "):
            old, _, new = line.removeprefix("rename: ").partition(" -> ")
            edit.renames.append((old, new))
        else:
            key, _, value = line.partition(":")
            if key not in ("check", "line", "first", "missed"):
                raise ValueError(f"{path}:{number}: {key!r} is no field")
            edit.fields[key] = value.strip()
    if edit is not None:
        yield edit
