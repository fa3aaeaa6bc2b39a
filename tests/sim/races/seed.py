"""Seeded defects: one edge of a kernel's synchronisation removed, and what must be said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.sim.mutants.mutate import Edit, Listing, Site

__all__ = ["EDITS", "Found", "Seed", "Survives", "places"]


@dataclass(frozen=True)
class Found:
    """A finding of this kind, that names these lines of the user's: for a race the later and the earlier access."""

    kind: str
    later: str
    earlier: str = ""


@dataclass(frozen=True)
class Survives:
    """Nothing is found, and why that is right."""

    why: str


@dataclass(frozen=True)
class Seed:
    """One edge removed.

    Attributes:
        target: A feature, or ``map_updates``.
        edit: Key of ``EDITS``.
        opcode: Leading parts of the instruction's opcode.
        source: Part of the user's line it comes from.
        number: Which of those.
        outcome: What must come of it.
    """

    target: str
    edit: str
    opcode: str
    source: str
    number: int
    outcome: Found | Survives

    @property
    def name(self) -> str:
        """The seed in a word."""
        return f"{self.target}: {self.edit} {self.opcode} at {self.source!r} #{self.number}"

    def ptx(self, listing: Listing) -> str:
        """The kernel with the defect. Raises NoSuchSite."""
        return listing.edited(EDITS[self.edit](listing.one(self.opcode, self.number, source=self.source)))


def _drop(site: Site) -> Edit:
    opcode = site.instruction.opcode
    if "try_wait" in opcode or "test_wait" in opcode:
        return site.instead(f"setp.eq.u32 {site.operands[0]}, 0, 0;")
    return site.drop()


def _more(site: Site) -> Edit:
    return site.set(0, str(int(site.operands[0]) + 1))


def _relaxed(site: Site) -> Edit:
    opcode = site.instruction.opcode
    after = ".".join(opcode.split(".")[: 3 if "parity" in opcode or "expect_tx" in opcode else 2])
    return site.opcode(after, f"{after}.relaxed.cta")


def _no_bytes(site: Site) -> Edit:
    return site.instead(f"mbarrier.arrive.shared::cta.b64 _, {site.operands[1]};")


def _next_barrier(site: Site) -> Edit:
    return site.shift(0 if site.instruction.opcode.startswith("tcgen05.commit") else 1, 8)


EDITS: Mapping[str, Callable[[Site], Edit]] = {
    "drop": _drop,
    "flip parity": lambda site: site.compute(2, "xor.b32 #, $, 1;", kind="r"),
    "announce no bytes": _no_bytes,
    "announce 16 bytes fewer": lambda site: site.compute(2, "add.s32 #, $, -16;", kind="r"),
    "make relaxed": _relaxed,
    "allow one group more": _more,
    "take the next barrier": _next_barrier,
    "narrow to the CTA": lambda site: site.opcode(".gpu", ".cta"),
}

_PLACE = re.compile(r"([\w.-]+\.py):(\d+)")


def places(finding: Mapping[str, Any], line: Callable[[str, int], str]) -> list[str]:
    """The user's lines that a finding's message names, in order, as text."""
    return [line(file, int(number)) for file, number in _PLACE.findall(finding["message"])]
