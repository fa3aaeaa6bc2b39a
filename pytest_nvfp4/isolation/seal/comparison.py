"""Compare the memory of a process with what it held before."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

from pytest_nvfp4.isolation.seal.cpython import Bytecode, LayoutError, ascii_text, dict_entries

_GAP = 512
"""Bytes between two ranges below which they are read at once."""
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
        """Return the parts and codes of the span's bytes, to compare them at once."""
        return itemgetter(*(slice(at, at + size) for at, size, _ in (*self.parts, *self.codes)))


@dataclass(slots=True)
class Comparison:
    """What some memory held when this was made, and what of it has changed since.

    Raises:
        LayoutError: The interpreter stores names in a way that is not known here.
        OSError: The memory cannot be read.
    """

    memory: Memory
    listed: Listed
    _spans: list[_Span] = field(default_factory=list)
    _before: list[bytes] = field(default_factory=list)
    _names: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    _keys: dict[int, set[int]] = field(default_factory=dict)
    _bytecode: Bytecode = field(default_factory=Bytecode)

    def __post_init__(self) -> None:
        self._spans = list(_spans(self.listed))
        self._before = [self.memory.read(span.address, span.size) for span in self._spans]
        names = self.listed.names
        for space, key, value, label in zip(names[::4], names[1::4], names[2::4], names[3::4], strict=True):
            self._names.setdefault(space, []).append((key, value, label))
        self._keys = {space: set(dict_entries(self.memory.read, space)) for space, _, _ in self.listed.closed}
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
            if span.select(now) == span.select(before):
                continue
            for offset, size, label in span.parts:
                if now[offset : offset + size] != before[offset : offset + size]:
                    yield label
            for offset, size, label in span.codes:
                units, earlier = now[offset : offset + size], before[offset : offset + size]
                if units != earlier and not self._bytecode.same(units, earlier):
                    yield label

    def _hiding_names(self) -> Iterator[str]:
        """Return new names that hide others: a global name a built-in one, an attribute an inherited one."""
        for space, label, index in self.listed.closed:
            try:
                new = dict_entries(self.memory.read, space).keys() - self._keys[space]
            except (LayoutError, OSError):  # it is being resized; the last reading is of a stopped process
                continue
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
                    held = dict_entries(self.memory.read, space)
                except (LayoutError, OSError):
                    continue
                wrong = [label for key, value, label in bindings if held.get(key) != value]
                if not wrong:
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
