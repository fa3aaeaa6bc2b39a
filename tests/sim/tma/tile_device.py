"""A tensor in global memory beside shared memory, and random tensor maps of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_nvfp4.sim.memory.globals import GlobalMemory, Region
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.tma.box import box_at
from pytest_nvfp4.sim.tma.tile import TmaTile, tile_of
from tests.sim.tma.maps import BITS, Geometry, loaded

SHARED = 1 << 17
MANY = 0x7FFF_0000
"""An extent that ends nothing."""


class Device:
    """A region of noise with a tensor in it, and a CTA's shared memory."""

    def __init__(self, geometry: Geometry, *, before: int = 48, after: int = 32, seed: int = 0) -> None:
        self.geometry = geometry
        self.memory = GlobalMemory()
        size = before + geometry.extent + after
        self.kept = np.random.default_rng(seed).integers(1, 256, size + 64, np.uint8)
        lead = -self.kept.ctypes.data % 32
        start = self.kept.ctypes.data + lead
        before -= before % 32
        self.region = self.memory.add(Region("X", start, size))
        self.address = start + before
        self.tensor = self.region.data[before:]
        self.shared = SharedMemory(SHARED, rank=0)

    @property
    def tile(self) -> TmaTile:
        """The tensor's map."""
        return tile_of(self.geometry.encode(self.address), what="test")

    def load(self, coordinates: tuple[int, ...], address: int) -> None:
        """Load a box to a shared address."""
        tile = self.tile
        order = tile.order(address)
        box = box_at(tile, coordinates, self.memory, write=False, what="test")
        box.load(order, self.shared, address - self.shared.base)

    def check(self, coordinates: tuple[int, ...], address: int, rows: Any = None) -> None:
        """Compare shared memory with the expected bytes."""
        expected = loaded(self.geometry, self.tensor, coordinates, address, rows)
        written = {int(i) + self.shared.base for i in np.flatnonzero(self.shared.written)}
        assert written == set(expected)
        got = {place: int(self.shared.data[place - self.shared.base]) for place in expected}
        assert got == expected


@st.composite
def geometries(
    draw: st.DrawFn, *, elements: tuple[int, ...] = tuple(e for e in BITS if e not in (8, 12, 13)), most: int = 6000
) -> Geometry:
    """Legal maps, boxes of at most ``most`` bytes."""
    element = draw(st.sampled_from(elements))
    bits = BITS[element]
    rank = draw(st.integers(1, 5))
    swizzle, atom = draw(st.sampled_from([(0, 0), (1, 0), (2, 0), (3, 0), (3, 0), (3, 1), (3, 3)]))
    span = {0: 512, 1: 32, 2: 64, 3: 128}[swizzle]
    unit = 128 // bits
    inner = draw(st.integers(1, min(256 // unit, span * 8 // (unit * bits)))) * unit
    box, steps = [inner], [1]
    left = most // (inner * bits // 8)
    for _ in range(rank - 1):
        step = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
        extent = draw(st.integers(1, max(1, min(24, left * step))))
        box.append(extent)
        steps.append(step)
        left //= -(-extent // step)
    dims = [draw(st.integers(1, 2 * inner))]
    if bits == 4:
        dims[0] += dims[0] % 2
    dims += [draw(st.integers(1, 9)) for _ in range(rank - 1)]
    strides, pitch = [], -(-dims[0] * bits // 128) * 16
    for dim in dims[1:]:
        pitch += draw(st.sampled_from([0, 0, 16, 48]))
        strides.append(pitch)
        pitch *= dim
    return Geometry(element, tuple(dims), tuple(strides), tuple(box), tuple(steps), swizzle, atom)


def coordinates_of(draw: st.DrawFn, geometry: Geometry, *, negative: bool = True) -> tuple[int, ...]:
    """Draw coordinates inside, across and outside the tensor."""
    found = [
        draw(st.integers(-box - 1 if negative else 0, dim + 2))
        for dim, box in zip(geometry.dims, geometry.box, strict=True)
    ]
    if draw(st.booleans()):
        found = [draw(st.integers(0, max(0, d - b))) for d, b in zip(geometry.dims, geometry.box, strict=True)]
    if geometry.bits == 4:
        found[0] -= found[0] % 2
    return tuple(found)
