"""A gang: warps, of one or several CTAs, that execute the same arithmetic in lockstep.

One call of numpy then serves all their lanes, which is what arithmetic costs most. A gang's register is an int while
all lanes of all warps agree, else one array with 32 elements for each warp; those that a gang does not read or write
stay with the warps. Accesses to memory, and what else needs the warp, are made warp by warp, so that checks, counters
and monitors see what they see without a gang.

Warps join where it is faster (``lower.ganged``). They leave together, at the first instruction that is not
executed in lockstep, at a branch that they do not all take, or where one of them has a value that is followed
(``run.following``); any interleaving of warps is legal, so that one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.run.following import FollowedValues
from pytest_nvfp4.sim.run.warp import Warp

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_nvfp4.sim.lower.ganged import GangCode
    from pytest_nvfp4.sim.run.scheduler import Scheduler

_LONG = 1 << 16
"""Blocks after which a gang ends, so that each warp is checked for an endless loop."""
_ABSENT = object()
"""Value of a register that the gang has neither read nor written."""


class Gang:
    """Warps with all 32 lanes at one place, in CTAs of one rank, so that a shared variable has one address.

    Attributes:
        warps: The warps; ``first`` is the first one, and ``cta`` its CTA.
        full: Mask of all lanes, 32 bits for each warp.
        registers: Values by slot; ``_ABSENT`` where each warp has its own.
        executed, passed, products: See ``Warp``; of each warp, of each, and of all.
        part: Mask of the lanes of the warp for which an instruction runs.
        units: State of units for the gang, by class.
    """

    def __init__(self, scheduler: Scheduler, code: GangCode, warps: Sequence[Warp]) -> None:
        self.scheduler = scheduler
        self.code = code
        self.warps = warps
        self.first = warps[0]
        self.cta = self.first.cta
        self.full = (1 << 32 * len(warps)) - 1
        self.part = lanes.FULL
        self.executed = 0
        self.passed: set[int] = set()
        self.products = 0
        self.blocks = 0
        self.units: dict[type, Any] = {}
        self.registers: list[Any] = [_ABSENT] * len(self.first.registers)

    def run(self, place: int) -> None:
        """Run from a place until the gang ends, and leave the warps where they are then."""
        entered: set[int] = set()
        written: set[int] = set()
        block = self.code.block(place)
        while block is not None and self.blocks < _LONG:
            if place not in entered:
                entered.add(place)
                self._gather(block.reads)
                written.update(block.writes)
            after = block.run(self.registers, self, self.full)
            self.blocks += 1
            if after < 0:
                place = ~after
                break
            place = after
            if any(FollowedValues in warp.units for warp in self.warps):
                break
            block = self.code.block(place)
        self.scheduler.running = None
        self._scatter(place, written)

    def branch(self, predicate: NDArray[np.bool_], taken: int, other: int, at: int) -> int:
        """Return where all lanes go on; ``~at`` if they do not agree."""
        count = np.count_nonzero(predicate)
        if count == predicate.size:
            return taken
        if not count:
            return other
        self.executed -= 1
        if (detail := self.cta.launch.detail) is not None:
            detail.by_instruction[at, "instructions"] -= len(self.warps)
        return ~at

    def _gather(self, reads: Iterable[tuple[int, int]]) -> None:
        files = [warp.registers for warp in self.warps]
        for slot, bits in reads:
            if self.registers[slot] is _ABSENT:
                self.registers[slot] = joined([file[slot] for file in files], bits)

    def _scatter(self, place: int, written: set[int]) -> None:
        count = len(self.warps)
        for slot in self.code.live(place) & written:
            value = self.registers[slot]
            if value.__class__ is not np.ndarray:
                for warp in self.warps:
                    warp.registers[slot] = value
                continue
            rows = value.reshape(count, 32)
            common = (rows == rows[:, :1]).all(axis=1).tolist()
            firsts = rows[:, 0].tolist()
            for number, warp in enumerate(self.warps):
                warp.registers[slot] = firsts[number] if common[number] else rows[number]
        for warp in self.warps:
            warp.executed += self.executed
            warp.passed |= self.passed
            warp.groups[0].pc = place
        self.first.products += self.products


def joined(values: Sequence[Any], bits: int) -> Any:
    """Return the values of all warps as one; None stands for a warp without active lanes."""
    first = values[0]
    alike = first.__class__ is not np.ndarray and all(value.__class__ is first.__class__ for value in values)
    if alike and all(value == first for value in values):
        return first
    whole = np.zeros(32 * len(values), np.bool_ if bits == 1 else lanes.DTYPES[bits])
    for number, value in enumerate(values):
        if value is not None:
            whole[32 * number : 32 * number + 32] = value
    return whole


def each(gang: Gang, mask: int, function: Callable[..., Any], bits: int, *values: Any) -> Any:
    """Call ``function(warp, mask, *values)`` for each warp that has active lanes, and join the results.

    Arrays, also those in tuples, are divided between the warps. ``bits`` is the width of a result.
    """
    results: list[Any] = []
    for number, warp in enumerate(gang.warps):
        part = mask >> 32 * number & lanes.FULL
        if not part:
            results.append(None)
            continue
        gang.scheduler.running = warp
        gang.part = part
        where = slice(32 * number, 32 * number + 32)
        results.append(function(warp, part, *[_of_warp(value, where) for value in values]))
    some = next((result for result in results if result is not None), None)
    if isinstance(some, tuple):
        return tuple(
            joined([None if each is None else each[item] for each in results], bits) for item in range(len(some))
        )
    return joined(results, bits)


def _of_warp(value: Any, where: slice) -> Any:
    if value.__class__ is np.ndarray:
        return value[where]
    if value.__class__ is tuple:
        return tuple([_of_warp(item, where) for item in value])
    return value


def merge(gang: Gang, mask: int, new: Any, old: Any, bits: int) -> Any:
    """Return ``new`` in the lanes of ``mask`` and ``old`` in the others."""
    if new is old:
        return new
    dtype = np.bool_ if bits == 1 else lanes.DTYPES[bits]
    packed = np.frombuffer(mask.to_bytes(4 * len(gang.warps), "little"), np.uint8)
    chosen = np.unpackbits(packed, bitorder="little").view(np.bool_)
    return np.where(chosen, np.asarray(new, dtype), np.asarray(old, dtype))
