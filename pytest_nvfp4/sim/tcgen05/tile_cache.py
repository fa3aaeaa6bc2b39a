"""Cache of decoded operands of chains of MMAs.

It compares all bytes of an operand. It hits where CTAs of one row or column of the grid share an operand. No counter
reports the hits, because their number depends on the order of the CTAs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.tcgen05.operand import Chunks, Recordings
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandEncoding, OperandTile, decode
from pytest_nvfp4.sim.tcgen05.step_tiles import Product, StepTile, decode_steps

_BUDGET = 32 << 20
"""Capacity in bytes of decoded values."""
_SAMPLES = 64
"""Chunks of an operand that are part of its key."""


class OperandBytes(NamedTuple):
    """An operand of a chain, as it was recorded.

    Attributes:
        encoding: Meaning of the bytes.
        parts: For each CTA that holds rows of the operand, its chunks, ``[instruction][...]``.
        words: The words of scale factors of all rows, by instruction, and with K = 96 those that follow them; empty
            without block scaling.
        ids: The SF id of each instruction.
    """

    encoding: OperandEncoding
    parts: list[Chunks]
    words: bytes
    ids: tuple[int, ...]

    @property
    def instructions(self) -> int:
        """Number of instructions."""
        return len(self.parts[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and elements of K."""
        return self.encoding.rows * len(self.parts), self.encoding.k * self.instructions


class _CachedTile(NamedTuple):
    """A tile and the bytes that it was decoded from; None if they have no such tile."""

    raw: list[NDArray[np.uint64]]
    words: bytes
    tile: OperandTile | StepTile | None


class OperandTileCache:
    """Least-recently-used cache of decoded operands: ``machine.unit(OperandTileCache)``.

    Attributes:
        held: Bytes of decoded values in the cache.
        recordings: Memory to record operands in.
    """

    def __init__(self, machine: Machine | None = None, *, budget: int = _BUDGET) -> None:
        self.budget = budget
        self.held = 0
        self.recordings = Recordings()
        self._tiles: OrderedDict[tuple[Any, ...], _CachedTile] = OrderedDict()
        self._scratch: dict[tuple[int, int], NDArray[np.float32]] = {}
        self._machine = machine

    @property
    def int8_product(self) -> Product | None:
        """The machine's product of 8-bit integers, if it has one."""
        return None if self._machine is None else self._machine.int8_product()

    def get(self, operand: OperandBytes) -> OperandTile:
        """Return a decoded operand."""

        def made(together: list[Chunks], out: NDArray[Any] | None) -> OperandTile:
            encoding, shape = operand.encoding, operand.shape
            scaled = encoding.scale and not (encoding.packed and encoding.scale == "ue4m3")
            scratch = self._scratch.get(shape) if scaled else None
            if scaled and scratch is None:
                scratch = np.empty(shape, np.float32)
                self._scratch = {shape: scratch}
            return decode(
                encoding, together, operand.instructions, operand.words, operand.ids, out=out, scratch=scratch
            )

        tile = self._find(operand, np.dtype(np.float32), made)
        assert isinstance(tile, OperandTile)
        return tile

    def steps(self, operand: OperandBytes) -> StepTile | None:
        """Return a decoded operand of packed E2M1 as integers of 8 bits; None if it has other values."""

        def made(together: list[Chunks], out: NDArray[Any] | None) -> StepTile | None:
            return decode_steps(operand.encoding, together, operand.instructions, operand.words, operand.ids, out=out)

        tile = self._find(operand, np.dtype(np.int8), made)
        assert not isinstance(tile, OperandTile)
        return tile

    def _find(
        self,
        operand: OperandBytes,
        dtype: np.dtype[Any],
        make: Callable[[list[Chunks], NDArray[Any] | None], OperandTile | StepTile | None],
    ) -> OperandTile | StepTile | None:
        together = [part.reshape(-1) for part in operand.parts]
        raw = [part.view(np.uint64) for part in together]
        first, words, shape = together[0], operand.words, operand.shape
        sample = first[:: max(1, first.size // _SAMPLES)].tobytes()
        ids_key = operand.ids if operand.encoding.vector != 4 else ()
        key = (dtype, operand.encoding, shape, ids_key, sample, words[:256], words[-256:])
        cached = self._tiles.get(key)
        if cached is not None and cached.words == words and _same(cached.raw, raw):
            self._tiles.move_to_end(key)
            return cached.tile
        out = None
        if self.held + dtype.itemsize * shape[0] * shape[1] > self.budget and cached is None:
            out = self._evict(shape, dtype)
        tile = make(together, out)
        if cached is not None and cached.tile is not None:
            self.held -= cached.tile.nbytes
        self._tiles[key] = _CachedTile([part.copy() for part in raw], words, tile)
        self._tiles.move_to_end(key)
        self.held += 0 if tile is None else tile.nbytes
        return tile

    def _evict(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Drop the oldest tiles, but not the last, which may be in use; return one's memory that has the shape."""
        out: NDArray[Any] | None = None
        while len(self._tiles) > 1 and self.held > self.budget * 7 // 8:
            _, (_, _, tile) = self._tiles.popitem(last=False)
            if tile is not None:
                self.held -= tile.nbytes
                if out is None and tile.values.shape == shape and tile.values.dtype == dtype:
                    out = tile.values
        return out


def _same(one: list[NDArray[np.uint64]], other: list[NDArray[np.uint64]]) -> bool:
    return all(a.size == b.size and bool((a == b).all()) for a, b in zip(one, other, strict=True))
