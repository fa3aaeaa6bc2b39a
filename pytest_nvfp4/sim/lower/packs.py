"""Registers that were packed of others (``mov.b64 %rd, {%r0, %r1}``), within one block.

Compilers pair 32-bit values for instructions on pairs, and take them apart again some lines later, often with nothing
in between. So the packing is written when something else reads the register, or where it is live at the end of the
block, and taking apart gives the very items. A *pack* is forgotten, and written first if that is still to be done, when
one of its items is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Packs"]


@dataclass(slots=True)
class _Pack:
    items: tuple[str, ...]
    sources: frozenset[int]
    bits: int
    expression: str
    written: bool = False


class Packs:
    """What is known at the place of the emitter.

    Args:
        write: Writes ``v<slot> = expression``.
    """

    def __init__(self, write: Callable[[int, str], None]) -> None:
        self._write = write
        self._known: dict[int, _Pack] = {}

    def add(self, slot: int, expression: str, items: Sequence[str], sources: Iterable[int], *, bits: int) -> None:
        """Register ``slot`` is to hold ``items`` of ``bits`` each, which are the registers ``sources`` or literals."""
        self.overwritten(slot)
        self._known[slot] = _Pack(tuple(items), frozenset(sources), bits, expression)

    def items(self, slot: int, *, bits: int) -> tuple[str, ...] | None:
        """Names of the items of ``bits`` of a register, if they are known."""
        pack = self._known.get(slot)
        return pack.items if pack is not None and pack.bits == bits else None

    def sources(self, slot: int) -> frozenset[int]:
        """The registers that the items of a known pack are."""
        return self._known[slot].sources

    def need(self, slot: int) -> None:
        """A register is about to be read."""
        pack = self._known.get(slot)
        if pack is not None and not pack.written:
            pack.written = True
            self._write(slot, pack.expression)

    def need_all(self) -> None:
        """What follows may run or not: write all that is to be written before."""
        for slot in self._known:
            self.need(slot)

    def overwritten(self, slot: int) -> None:
        """A register is about to be written."""
        if not self._known:
            return
        self._known.pop(slot, None)
        for other in [other for other, pack in self._known.items() if slot in pack.sources]:
            self.need(other)
            del self._known[other]
