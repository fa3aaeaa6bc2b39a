"""Registers packed from others (``mov.b64 %rd, {%r0, %r1}``), within one block.

Compilers pair 32-bit values for instructions on pairs and unpack them some lines later, often with nothing in between.
So packing is deferred until something else reads the register or the block ends with it live, and unpacking returns the
original items. A *pack* is dropped, and written first if it is still deferred, when one of its items is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Pack:
    items: tuple[str, ...]
    sources: frozenset[int]
    bits: int
    expression: str
    written: bool = False


class Packs:
    """Packs known at the emitter's current place.

    Args:
        write: Writes ``v<slot> = expression``.
    """

    def __init__(self, write: Callable[[int, str], None]) -> None:
        self._write = write
        self._known: dict[int, _Pack] = {}

    def add(self, slot: int, expression: str, items: Sequence[str], sources: Iterable[int], *, bits: int) -> None:
        """Record that register ``slot`` holds ``items`` of ``bits`` each, made from the registers ``sources`` or
        literals.
        """
        self.overwritten(slot)
        self._known[slot] = _Pack(tuple(items), frozenset(sources), bits, expression)

    def items(self, slot: int, *, bits: int) -> tuple[str, ...] | None:
        """Return the names of a register's items of ``bits``, if known."""
        pack = self._known.get(slot)
        return pack.items if pack is not None and pack.bits == bits else None

    def sources(self, slot: int) -> frozenset[int]:
        """Return the source registers of a known pack."""
        return self._known[slot].sources

    def need(self, slot: int) -> None:
        """Write a deferred pack before its register is read."""
        pack = self._known.get(slot)
        if pack is not None and not pack.written:
            pack.written = True
            self._write(slot, pack.expression)

    def need_all(self) -> None:
        """Write all deferred packs, before code that may or may not run."""
        for slot in self._known:
            self.need(slot)

    def overwritten(self, slot: int) -> None:
        """Update the packs before a register is written."""
        if not self._known:
            return
        self._known.pop(slot, None)
        for other in [other for other, pack in self._known.items() if slot in pack.sources]:
            self.need(other)
            del self._known[other]
