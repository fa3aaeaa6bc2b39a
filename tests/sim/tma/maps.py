"""Tensor maps written bit by bit, and what their boxes hold, element by element: the oracle of the copies' tests."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import ElementType

BITS = {0: 8, 1: 16, 2: 32, 3: 32, 4: 64, 5: 64, 6: 16, 7: 32, 8: 32, 9: 64, 10: 16, 11: 4, 12: 4, 13: 6}


@dataclass
class Geometry:
    """The arguments of ``cuTensorMapEncodeTiled``: strides in bytes from dimension 1 on; swizzle 0-3, atom 0-3."""

    element: int = ElementType.U8
    dims: tuple[int, ...] = (128,)
    strides: tuple[int, ...] = ()
    box: tuple[int, ...] = (64,)
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    atom: int = 0
    fill: int = 0
    interleave: int = 0
    tf32: int = 0

    @property
    def bits(self) -> int:
        return BITS[self.element]

    @property
    def counts(self) -> tuple[int, ...]:
        steps = self.steps or (1,) * len(self.box)
        return tuple(-(-b // s) for b, s in zip(self.box, steps, strict=True))

    @property
    def bytes(self) -> int:
        total = self.bits
        for count in self.counts:
            total *= count
        return total // 8

    @property
    def extent(self) -> int:
        """Bytes of global memory that the tensor spans."""
        return -(-self.dims[0] * self.bits // 8) + sum(
            (d - 1) * s for d, s in zip(self.dims[1:], self.strides, strict=True)
        )

    @property
    def pitch(self) -> int:
        """Bytes from one row of the box to the next in shared memory."""
        row = self.box[0] if self.element in (12, 13) else self.box[0] * self.bits // 8
        return max(row, 16 << self.swizzle) if self.swizzle else row

    def encode(self, address: int, tag: int = 2) -> bytes:
        """The 128 bytes; those after 64 are noise. The tag is 2 in the DSL's maps, 0 in the driver's for an H200."""
        rank = len(self.dims)
        steps = (*(self.steps or (1,) * rank), *[1] * (5 - rank))
        dims = [*self.dims, *[1] * (5 - rank)]
        box = [*self.box, *[1] * (5 - rank)]
        strides = [*self.strides, *[0] * (4 - len(self.strides))]
        fields = [
            (0, 0, 64, address),
            (1, 0, 4, tag),
            (1, 4, 3, rank - 1),
            (1, 7, 4, int(self.element)),
            (1, 11, 2, self.interleave),
            (1, 13, 2, self.swizzle),
            (1, 15, 1, self.fill),
            (1, 16, 1, self.tf32),
            (1, 19, 2, self.atom),
            (6, 56, 8, box[0] - 1),
        ]
        for i, (word, start) in enumerate([(1, 32), (2, 0), (2, 32), (3, 0)]):
            fields.append((word, start, 32, strides[i] >> 4 & 0xFFFF_FFFF))
            fields.append((3, 32 + 4 * i, 4, strides[i] >> 36))
        for i, (word, start) in enumerate([(4, 0), (4, 32), (5, 0), (5, 32), (6, 0)]):
            fields.append((word, start, 32, dims[i] - 1))
            fields.append((6, 32 + 3 * i, 3, steps[i] - 1))
        fields += [(7, 8 * i, 8, box[i + 1] - 1) for i in range(4)]
        words = [0] * 8
        for word, start, width, value in fields:
            assert 0 <= value < 1 << width, (word, start, width, value)
            words[word] |= value << start
        return struct.pack("<8Q", *words) + b"\x5a" * 64

    def place(self, linear: int, address: int) -> int:
        """The absolute shared address of a byte of the box, by the tables of the ISA: chunk numbers XORed by line."""
        row = self.box[0] if self.element in (12, 13) else self.box[0] * self.bits // 8
        place = address + linear // row * self.pitch + linear % row
        line = place // 128
        if self.swizzle == 0:
            return place
        if self.swizzle == 3 and self.atom == 1:
            chunk, across, row = 32, 4, line % 4
        elif self.swizzle == 3 and self.atom == 3:
            chunk, across, row = 64, 2, line % 2
        else:
            chunk, across = 16, 8
            row = line % {1: 2, 2: 4, 3: 8}[self.swizzle]
        within = place % 128
        number = within // chunk
        assert number < across
        return line * 128 + (number ^ row) * chunk + within % chunk


def walk(
    geometry: Geometry, coordinates: Sequence[int], address: int, rows: Sequence[int] | None = None
) -> Iterator[tuple[int | None, int, int | None]]:
    """Every byte (for 4-bit elements: half byte) of a box: ``(global offset or None, shared address, nibble)``.

    ``rows`` gives the second coordinate of each row for the modes of four rows.
    """
    counts = geometry.counts
    steps = geometry.steps or (1,) * len(counts)
    if rows is not None:
        counts = (counts[0], len(rows))
    if geometry.element in (12, 13):
        yield from walk_padded(geometry, coordinates, address)
        return
    total = 1
    for count in counts:
        total *= count
    for number in range(total):
        left, inside, offset = number, True, 0
        for d, count in enumerate(counts):
            j, left = left % count, left // count
            c = rows[j] if rows is not None and d == 1 else coordinates[d] + j * steps[d]
            inside = inside and 0 <= c < geometry.dims[d]
            offset += c * (geometry.bits if d == 0 else 8 * geometry.strides[d - 1])
        if geometry.bits == 4:
            linear = number // 2
            yield (offset // 8 if inside else None), geometry.place(linear, address), number % 2
        else:
            size = geometry.bits // 8
            for b in range(size):
                yield (offset // 8 + b if inside else None), geometry.place(number * size + b, address), None


def walk_padded(
    geometry: Geometry, coordinates: Sequence[int], address: int
) -> Iterator[tuple[int | None, int, int | None]]:
    """Groups of 16 elements: ``bits * 2`` bytes of global memory to the first bytes of each 16 of shared memory."""
    counts = (geometry.counts[0] // 16, *geometry.counts[1:])
    steps = geometry.steps or (1,) * len(counts)
    size = 2 * geometry.bits
    total = 1
    for count in counts:
        total *= count
    for number in range(total):
        left, inside, offset = number, True, 0
        for d, count in enumerate(counts):
            j, left = left % count, left // count
            c = coordinates[d] + j * (16 if d == 0 else steps[d])
            inside = inside and 0 <= c < geometry.dims[d]
            offset += c // 16 * size if d == 0 else c * geometry.strides[d - 1]
        for b in range(size):
            yield (offset + b if inside else None), geometry.place(16 * number + b, address), None


def loaded(
    geometry: Geometry,
    source: NDArray[np.uint8],
    coordinates: Sequence[int],
    address: int,
    rows: Sequence[int] | None = None,
) -> dict[int, int]:
    """By absolute shared address: the byte that a load puts there; ``source`` starts at the tensor's address."""
    found = {}
    for offset, place, nibble in walk(geometry, coordinates, address, rows):
        value = 0 if offset is None else int(source[offset])
        if nibble is None:
            found[place] = value
        else:
            # Both elements of a byte come from one byte: an even first coordinate.
            part = value & 0xF0 if nibble else value & 0x0F
            found[place] = found.get(place, 0) | part
    return found


def stored(
    geometry: Geometry,
    target: NDArray[np.uint8],
    shared: Mapping[int, int],
    coordinates: Sequence[int],
    address: int,
    rows: Sequence[int] | None = None,
) -> NDArray[np.uint8]:
    """``target`` after a store; ``shared`` maps absolute shared addresses to bytes."""
    after = target.copy()
    for offset, place, nibble in walk(geometry, coordinates, address, rows):
        if offset is None:
            continue
        if nibble is None:
            after[offset] = shared[place]
        else:
            keep, take = (0x0F, 0xF0) if nibble else (0xF0, 0x0F)
            after[offset] = after[offset] & keep | shared[place] & take
    return after
