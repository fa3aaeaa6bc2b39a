"""Compare the memory of a process with what it held before."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

from pytest_nvfp4.isolation.seal.cpython import Bytecode, DictBytes, LayoutError, ascii_text, dict_bytes

_GAP = 2048
"""Bytes between two ranges below which they are read at once; a reading costs as much as some kilobytes of it."""
_AGAIN = 3
"""Readings of a dictionary that may be changing while it is read."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The lists of an inventory, as they arrive from the process that made it (see ``inventory``)."""

    ranges: array[int]
    codes: array[int]
    names: array[int]
    closed: list[tuple[int, str, int]]
    hiding: list[frozenset[str]]
    labels: list[str]


@dataclass(slots=True)
class Memory:
    """The memory of another process, through an open ``/proc/PID/mem``."""

    descriptor: int

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address. Raises OSError if they cannot be read."""
        data = os.pread(self.descriptor, size, address) if 0 <= address < 1 << 63 else b""
        if len(data) != size:
            raise OSError(f"{size} bytes at {address:#x} cannot be read")
        return data


_Part = tuple[int, int, int]
"""Offset in a span, size and label."""


@dataclass
class _Span:
    """Neighbouring ranges that are read at once. Between them lies what may change, such as reference counts."""

    address: int
    size: int
    parts: list[_Part]
    codes: list[_Part]

    @cached_property
    def select(self) -> Callable[[bytes], object]:
        """Return the parts of the span's bytes, to compare them at once."""
        return itemgetter(*(slice(at, at + size) for at, size, _ in self.parts)) if self.parts else lambda _: ()


@dataclass(slots=True)
class Comparison:
    """What some memory held when this was made, and what of it has changed since.

    Most of the memory is what it was at the last reading, which is compared first.

    Raises:
        LayoutError: The interpreter stores names in a way that is not known here.
        OSError: The memory cannot be read.
    """

    memory: Memory
    listed: Listed
    _spans: list[_Span] = field(default_factory=list)
    _before: list[bytes] = field(default_factory=list)
    _intact: dict[int, bytes] = field(default_factory=dict)
    """The last bytes of a span, by its address, that differ from those before in nothing that counts."""
    _running: dict[int, bytes] = field(default_factory=dict)
    """The last units of a code, by their address, that do the same as those before."""
    _bound: dict[int, DictBytes] = field(default_factory=dict)
    """The last content of a dictionary with all of its bindings."""
    _closed: dict[int, DictBytes] = field(default_factory=dict)
    """The last content of a dictionary without new names."""
    _names: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    _keys: dict[int, set[int]] = field(default_factory=dict)
    _bytecode: Bytecode = field(default_factory=Bytecode)

    def __post_init__(self) -> None:
        self._spans = list(_spans(self.listed))
        self._before = [self.memory.read(span.address, span.size) for span in self._spans]
        names = self.listed.names
        for space, key, value, label in zip(names[::4], names[1::4], names[2::4], names[3::4], strict=True):
            self._names.setdefault(space, []).append((key, value, label))
        self._closed = {space: dict_bytes(self.memory.read, space) for space, _, _ in self.listed.closed}
        self._keys = {space: set(held.addresses()) for space, held in self._closed.items()}
        if wrong := list(self._changed_names()):
            raise LayoutError(f"{self.listed.labels[wrong[0]]} is not found where Python should store it")

    def changed(self) -> list[str]:
        """Return what has changed, in the order of the inventory."""
        labels = sorted({*self._changed_ranges(), *self._changed_names()})
        return list(dict.fromkeys((*(self.listed.labels[label] for label in labels), *self._hiding_names())))

    def _changed_ranges(self) -> Iterator[int]:
        for span, before in zip(self._spans, self._before, strict=True):
            try:
                now = self.memory.read(span.address, span.size)
            except OSError:  # whatever was there has gone
                yield from (label for _, _, label in (*span.parts, *span.codes))
                continue
            if now == self._intact.get(span.address):
                continue
            changed = []
            for start, size, label in span.codes:
                end = start + size
                if not self._do_same(span.address + start, now[start:end], before[start:end]):
                    changed.append(label)
            if span.select(now) != span.select(before):
                ends = ((offset, offset + size, label) for offset, size, label in span.parts)
                changed += [label for start, end, label in ends if now[start:end] != before[start:end]]
            if not changed:
                self._intact[span.address] = now
            yield from changed

    def _do_same(self, address: int, now: bytes, before: bytes) -> bool:
        """Return whether the units of a code do the same as before."""
        if now in (before, self._running.get(address)):
            return True
        same = self._bytecode.same(now, before)
        if same:
            self._running[address] = now
        return same

    def _hiding_names(self) -> Iterator[str]:
        """Return new names that hide others: a global name a built-in one, an attribute an inherited one."""
        for space, label, index in self.listed.closed:
            try:
                held = dict_bytes(self.memory.read, space)
            except (LayoutError, OSError):  # it is being resized; the last reading is of a stopped process
                continue
            if held == self._closed[space]:
                continue
            new = held.addresses().keys() - self._keys[space]
            if not new:
                self._closed[space] = held
            for key in new:
                with suppress(OSError, LayoutError):
                    name = ascii_text(self.memory.read, key)
                    if name in self.listed.hiding[index]:
                        yield f"{label}.{name}"

    def _changed_names(self) -> Iterator[int]:
        for space, bindings in self._names.items():
            wrong = [label for _, _, label in bindings]
            for _ in range(_AGAIN):
                try:
                    held = dict_bytes(self.memory.read, space)
                except (LayoutError, OSError):
                    continue
                if held == self._bound.get(space):
                    wrong = []
                    break
                values = held.addresses()
                wrong = [label for key, value, label in bindings if values.get(key) != value]
                if not wrong:
                    self._bound[space] = held
                    break
            yield from wrong


def _spans(listed: Listed) -> Iterator[_Span]:
    ranges, codes = listed.ranges, listed.codes
    parts = [
        *((*part, False) for part in zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)),
        *((*part, True) for part in zip(codes[::3], codes[1::3], codes[2::3], strict=True)),
    ]
    parts.sort()
    start = end = -_GAP
    inside: tuple[list[_Part], list[_Part]] = ([], [])
    for address, size, label, code in parts:
        if address > end + _GAP:
            if inside[0] or inside[1]:
                yield _Span(start, end - start, *inside)
            start, end, inside = address, address, ([], [])
        inside[code].append((address - start, size, label))
        end = max(end, address + size)
    if inside[0] or inside[1]:
        yield _Span(start, end - start, *inside)
