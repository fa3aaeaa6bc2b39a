"""Warp collectives: instructions in which the lanes of a warp exchange values.

Rules (PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask", "elect.sync", "bar.warp.sync"):

- The member mask must contain the executing lane, and every live lane in it must execute the instruction; otherwise the
  behaviour is undefined, which is a fault here. Lanes may have different masks if each mask is the set of lanes that
  give it; each set then works separately. Exited lanes are not members.
- ``shfl.sync`` from a lane that does not execute it is undefined: a fault, even if the result is unused.
- ``elect.sync`` elects the lowest lane of the mask, or the machine's ``elected_lane`` if it is a member. The ISA leaves
  the choice open, except that one mask always gives the same lane.
- ``redux.sync`` of f32 (sm_100a): -0 is less than +0. NaN inputs are ignored; if all are NaN, or any with ``.NaN``, the
  result is 0x7fffffff.

Results that agree in all executing lanes are plain ints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from operator import and_, or_, xor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL, ONE_HOT, Bits, Predicate, bits_of, bools, first, guard_mask, lanes, uniform
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction
from pytest_nvfp4.sim.run.warp import Warp

_LANE = np.arange(32)
_CANONICAL_NAN = 0x7FFF_FFFF


def members_of(w: Warp, mask: int, members: Bits, what: str) -> list[int]:
    """Return the sets of lanes that work together, as masks: one set unless lanes give different member masks.

    Raises:
        Fault: a lane is not in its own mask, or a living member does not execute the instruction with it.
    """
    common = members if isinstance(members, int) else uniform(members, mask)
    if common is not None:
        _check_members(w, mask, common, what)
        return [mask]
    sets: dict[int, int] = {}
    for lane in lanes(mask):
        given = int(members[lane])  # type: ignore[index]
        sets[given] = sets.get(given, 0) | 1 << lane
    for given, together in sets.items():
        _check_members(w, together, given, what)
    return list(sets.values())


def _check_members(w: Warp, together: int, members: int, what: str) -> None:
    """Raise Fault unless the executing lanes are the live lanes of their member mask."""
    if together & ~members:
        raise Fault(
            "divergence",
            f"{what}: lane {first(together & ~members)} executes it and is not in its member mask {members:#010x}",
            hint="the mask must contain every lane that executes the instruction",
        )
    absent = members & w.live & ~together
    if absent:
        raise Fault(
            "divergence",
            f"{what}: lane {first(absent)} is in the member mask {members:#010x} and does not execute the instruction "
            "with the others",
            hint="move a .sync instruction out of a predicate or branch that some of its members do not take",
        )


# ---- shfl --------------------------------------------------------------------------------------------------------


class Shuffle:
    """Source lane of each lane for one mode, lane operand and clamp operand (PTX ISA, "shfl.sync").

    The clamp operand holds the clamp value in bits 0-4 and the segment mask in bits 8-12. A lane whose source is out of
    range keeps its own value, and its predicate is false.
    """

    __slots__ = ("inside", "lane", "source")

    def __init__(self, mode: str, b: Any, c: Any) -> None:
        b, c = np.asarray(b, np.int64), np.asarray(c, np.int64)
        offset, clamp, segment = b & 31, c & 31, c >> 8 & 31
        low = _LANE & segment
        high = low | (clamp & ~segment)
        if mode == "up":
            there = _LANE - offset
            inside = there >= high
        elif mode == "down":
            there = _LANE + offset
            inside = there <= high
        elif mode == "bfly":
            there = _LANE ^ offset
            inside = there <= high
        else:
            there = low | (offset & ~segment)
            inside = there <= high
        self.inside: NDArray[np.bool_] = np.broadcast_to(inside, (32,))
        self.source: NDArray[np.intp] = np.where(inside, there, _LANE).astype(np.intp)
        self.lane = int(self.source[0]) if (self.source == self.source[0]).all() else None

    def value(self, mask: int, a: Bits, sets: list[int], what: str) -> Bits:
        """Return the result in each lane. Raises Fault if a source lane does not execute the instruction."""
        if len(sets) > 1:
            for together in sets:
                self._check(together, what)
        elif mask != FULL:
            self._check(mask, what)
        if isinstance(a, int):
            return a
        if self.lane is not None:
            return int(a[self.lane])
        return _collapsed(a[self.source], mask)

    def predicate(self, mask: int) -> Predicate:
        """Return whether the source lane is in range."""
        return _agreed(self.inside, mask)

    def _check(self, mask: int, what: str) -> None:
        for lane in lanes(mask):
            source = int(self.source[lane])
            if not mask >> source & 1:
                raise Fault(
                    "inactive-lane",
                    f"{what}: lane {lane} reads lane {source}, which does not execute the instruction with it "
                    f"(lanes {mask:#010x} do)",
                    hint="the value is undefined; reduce the clamp or width operand, or execute it in all lanes",
                )


@lru_cache(maxsize=4096)
def shuffle_plan(mode: str, b: int, c: int) -> Shuffle:
    """Return the cached shuffle of a mode with uniform operands."""
    return Shuffle(mode, b, c)


def receivers(ins: Instruction, given: int) -> int:
    """Return the lanes to which a shuffle or reduction may give a value that lanes ``given`` have."""
    lane, clamp = ins.operands[2:4] if ins.root == "shfl" else (None, None)
    if not (isinstance(lane, Immediate) and isinstance(clamp, Immediate)):
        return FULL
    plan = shuffle_plan(ins.parts[2], lane.value & FULL, clamp.value & FULL)
    return bits_of(bools(given)[plan.source])


def shuffle_fixed(w: Warp, mask: int, a: Bits, plan: Shuffle, what: str) -> Bits:
    """Execute shfl.sync with constant operands and all lanes as members."""
    if mask == FULL:
        if a.__class__ is int:
            return a
        if plan.lane is not None:
            return int(a[plan.lane])  # type: ignore[index]
    return plan.value(mask, a, members_of(w, mask, FULL, what), what)


def shuffle(w: Warp, mask: int, a: Bits, b: Bits, c: Bits, members: Bits, mode: str) -> tuple[Bits, Predicate]:
    """Execute any shfl.sync; return the value and the predicate."""
    what = f"shfl.sync.{mode}"
    sets = members_of(w, mask, members, what)
    offset = b if isinstance(b, int) else uniform(b, mask)
    clamp = c if isinstance(c, int) else uniform(c, mask)
    plan = shuffle_plan(mode, offset, clamp) if offset is not None and clamp is not None else Shuffle(mode, b, c)
    return plan.value(mask, a, sets, what), plan.predicate(mask)


# ---- vote, match, redux, elect -----------------------------------------------------------------------------------


def vote(w: Warp, mask: int, predicate: Predicate, members: Bits, mode: str) -> Any:
    """Execute vote.sync; return a predicate, or a mask for ``ballot``."""
    sets = members_of(w, mask, members, f"vote.sync.{mode}")
    holds = guard_mask(predicate, mask)
    return _each(sets, lambda together: _voted(holds & together, together, mode), 1 if mode != "ballot" else 32)


def _voted(holds: int, together: int, mode: str) -> int | bool:
    if mode == "ballot":
        return holds
    if mode == "all":
        return holds == together
    if mode == "any":
        return holds != 0
    return holds in (0, together)


def match_any(w: Warp, mask: int, value: Bits, members: Bits) -> Bits:
    """Execute match.any.sync; return the mask of lanes with the same value."""
    sets = members_of(w, mask, members, "match.any.sync")
    result = np.zeros(32, np.uint32)
    for together in sets:
        same: dict[int, int] = {}
        for lane in lanes(together):
            key = value if isinstance(value, int) else int(value[lane])
            same[key] = same.get(key, 0) | 1 << lane
        for equal in same.values():
            result[bools(equal)] = equal
    return _collapsed(result, mask)


def match_all(w: Warp, mask: int, value: Bits, members: Bits) -> tuple[Bits, Predicate]:
    """Execute match.all.sync; return the members, or 0 if their values differ, and whether the values are equal."""
    sets = members_of(w, mask, members, "match.all.sync")
    same: Predicate = _each(sets, lambda together: uniform(value, together) is not None, 1)
    return _each(sets, lambda together: together if uniform(value, together) is not None else 0, 32), same


def redux(w: Warp, mask: int, value: Bits, members: Bits, operation: Callable[[list[int]], int]) -> Bits:
    """Execute redux.sync; return one value for all members."""
    sets = members_of(w, mask, members, "redux.sync")

    def reduced(together: int) -> int:
        if isinstance(value, int):
            return operation([value] * together.bit_count())
        return operation([int(v) for v in value[bools(together)]])

    result: Bits = _each(sets, reduced, 32)
    return result


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def minmax(choose: Callable[..., int], *, magnitude: bool, nan: bool) -> Callable[[list[int]], int]:
    """Return the reduction of f32 patterns to the smallest (``min``) or largest (``max``)."""

    def operation(values: list[int]) -> int:
        if magnitude:
            values = [value & 0x7FFF_FFFF for value in values]
        numbers = [value for value in values if value & 0x7FFF_FFFF <= 0x7F80_0000]
        if not numbers or (nan and len(numbers) < len(values)):
            return _CANONICAL_NAN
        # Flipping the sign bit of positive patterns and all bits of negative ones makes unsigned order equal to the
        # order of the values, with -0 below +0.
        return choose(numbers, key=lambda v: v ^ (FULL if v >> 31 else 0x8000_0000))

    return operation


REDUCTIONS: dict[tuple[str, str], Callable[[list[int]], int]] = {
    **{("add", kind): lambda values: sum(values) & FULL for kind in ("u32", "s32")},
    ("min", "u32"): min,
    ("max", "u32"): max,
    ("min", "s32"): lambda values: min(values, key=_signed),
    ("max", "s32"): lambda values: max(values, key=_signed),
    ("and", "b32"): lambda values: reduce(and_, values),
    ("or", "b32"): lambda values: reduce(or_, values),
    ("xor", "b32"): lambda values: reduce(xor, values),
}


def elect(w: Warp, mask: int, members: Bits) -> tuple[Bits, Predicate]:
    """Execute elect.sync; return the elected lane, and the predicate that is true in that lane."""
    if members.__class__ is int and members == FULL and mask == w.live and w.cta.launch.machine.elected_lane is None:
        lane = first(mask)
        return lane, ONE_HOT[lane] if mask & (mask - 1) else True
    sets = members_of(w, mask, members, "elect.sync")
    preferred = w.cta.launch.machine.elected_lane
    chosen = {s: preferred if preferred is not None and s >> preferred & 1 else first(s) for s in sets}
    elected = reduce(or_, (1 << lane for lane in chosen.values()))
    return _each(sets, chosen.__getitem__, 32), True if elected == mask else bools(elected)


def warp_barrier(w: Warp, mask: int, members: Bits, at: int) -> None:
    """Execute bar.warp.sync: check the members, which have already met, and report them to the monitor."""
    monitor = w.cta.launch.machine.monitor
    for together in members_of(w, mask, members, "bar.warp.sync"):
        if monitor is not None:
            monitor.warp_met(w, together, at)


# ---- values ------------------------------------------------------------------------------------------------------


def _each(sets: list[int], function: Callable[[int], Any], bits: int) -> Any:
    """Return the result of the only set, or an array with the result of each set in its lanes."""
    if len(sets) == 1:
        return function(sets[0])
    result: NDArray[Any] = np.zeros(32, np.bool_ if bits == 1 else np.uint32)
    for together in sets:
        result[bools(together)] = function(together)
    return result


def _collapsed(value: NDArray[Any], mask: int) -> Bits:
    common = value[first(mask)]
    if mask == FULL:
        return int(common) if common == value[31] and (value == common).all() else value
    return int(common) if (value[bools(mask)] == common).all() else value


def _agreed(value: NDArray[np.bool_], mask: int) -> Predicate:
    bits = bits_of(value) & mask
    return True if bits == mask else (value if bits else False)
