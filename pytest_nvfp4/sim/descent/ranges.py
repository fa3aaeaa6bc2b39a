"""What device memory holds, by ranges of addresses."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.sim.descent.origins import Held


def span(extent: Extent) -> tuple[int, int, bool]:
    """Return the addresses [low, high) around a strided array, and whether it has every byte between them.

    An array without elements is [address, address).
    """
    if 0 in extent.shape:
        return extent.address, extent.address, True
    low = high = extent.address
    count = 1
    for length, stride in zip(extent.shape, extent.strides, strict=True):
        if stride and length > 1:
            count *= length
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
    high += extent.size
    return low, high, count * extent.size == high - low


class Ranges:
    """Adjacent ranges with what they hold, over all of device memory; a range that is not listed holds nothing."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._held: list[Held] = []

    def __len__(self) -> int:
        return len(self._starts)

    def over(self, low: int, high: int) -> Iterator[Held]:
        """Yield what the listed ranges that overlap [low, high) hold."""
        for index in range(*self._overlap(low, high)):
            yield self._held[index]

    def set(self, low: int, high: int, held: Held) -> None:
        """Replace what [low, high) holds."""
        if high > low:
            self._replace(low, high, [(low, high, held)])

    def clear(self, low: int, high: int) -> None:
        """Forget what [low, high) holds, because it was freed."""
        if high > low:
            self._replace(low, high, [])

    def mix(self, low: int, high: int, held: Held) -> None:
        """Record a write of some bytes of [low, high)."""
        first, last = self._overlap(low, high)
        pieces: list[tuple[int, int, Held]] = []
        at = low
        for index in range(first, last):
            start, stop = max(low, self._starts[index]), min(high, self._stops[index])
            if at < start:
                pieces.append((at, start, held))
            pieces.append((start, stop, self._held[index] | held))
            at = stop
        if at < high:
            pieces.append((at, high, held))
        self._replace(low, high, pieces)

    def change(self, function: Callable[[Held], Held]) -> None:
        """Replace what each range holds by a function of it."""
        known: dict[int, Held] = {}
        for index, held in enumerate(self._held):
            if id(held) not in known:
                known[id(held)] = function(held)
            self._held[index] = known[id(held)]

    def _overlap(self, low: int, high: int) -> tuple[int, int]:
        """Return the indices [first, last) of the ranges that overlap [low, high)."""
        return bisect.bisect_right(self._stops, low), bisect.bisect_left(self._starts, high)

    def _replace(self, low: int, high: int, pieces: list[tuple[int, int, Held]]) -> None:
        first, last = self._overlap(low, high)
        if first < last and self._starts[first] < low:
            pieces.insert(0, (self._starts[first], low, self._held[first]))
        if first < last and self._stops[last - 1] > high:
            pieces.append((high, self._stops[last - 1], self._held[last - 1]))
        merged: list[tuple[int, int, Held]] = []
        for start, stop, held in pieces:
            if merged and merged[-1][1] == start and merged[-1][2] == held:
                merged[-1] = (merged[-1][0], stop, held)
            else:
                merged.append((start, stop, held))
        self._starts[first:last] = [start for start, _, _ in merged]
        self._stops[first:last] = [stop for _, stop, _ in merged]
        self._held[first:last] = [held for _, _, held in merged]
