"""Values that are followed from the instruction that loaded them to their first use.

What may use the value of a load is known from the code (``sim.ptx.uses``). From the time that a warp has loaded a value
that matters only if it is used, these instructions are watched (``Program.watch``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.ptx.uses import Uses
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.collective import receivers


@dataclass(slots=True)
class _Followed:
    used: Callable[[], None]
    lanes: int
    uses: Uses
    fault: Fault | None


class FollowedValues:
    """Values that a warp may have in registers, by the instruction that loaded them and why they are followed."""

    def __init__(self, warp: Warp) -> None:
        del warp
        self.values: dict[tuple[int, object], _Followed] = {}

    def stored(self, at: int, mask: int) -> tuple[dict[int, int], Fault | None]:
        """Return what a store to shared memory passes on of values that are not defined, and why they are not.

        What it passes on are the lanes of ``mask``, by the number of the element.
        """
        lanes: dict[int, int] = {}
        why = None
        for value in self.values.values():
            if value.fault is None or not mask & value.lanes:
                continue
            for store, element in value.uses.stores:
                if store == at:
                    lanes[element] = lanes.get(element, 0) | mask & value.lanes
                    why = why or value.fault
        return lanes, why


def follow(
    w: Warp, at: int, lanes: int, uses: Uses, used: Callable[[], None], *, reason: object = None,
    fault: Fault | None = None,
) -> None:  # fmt: skip
    """Call ``used`` once, when a lane of ``lanes`` executes one of the uses of what an instruction has loaded.

    A block that runs now is not compiled to watch them: see ``Frames.lanes_behind`` and ``Frames.used_now``.

    Args:
        reason: Values of one instruction and one reason are one, with the ``used`` that was given first.
        fault: Why the value is not defined, for stores of it to shared memory, which are no uses then.
    """
    w.cta.launch.program.watch(uses.watched | {at})
    values = w.unit(FollowedValues).values
    if (known := values.get((at, reason))) is None:
        values[at, reason] = _Followed(used, lanes, uses, fault)
    else:
        known.lanes |= lanes
        known.uses = known.uses.joined(uses)


def watched(w: Warp, mask: int, at: int) -> None:
    """Follow the lanes that execute a watched instruction: call ``used``, and forget what they load anew.

    Lanes to which an exchange gives the value are followed from then on.
    """
    unit = w.units.get(FollowedValues)
    if unit is None:
        return
    for source, value in list(unit.values.items()):
        if source[0] == at and not value.uses.carried:
            value.lanes &= ~mask
        elif mask & value.lanes and at in value.uses.all:
            value.lanes = 0
            value.used()
        elif mask & value.lanes and at in value.uses.exchanges:
            exchange = w.cta.launch.kernel.instructions[at]
            value.lanes |= mask & receivers(exchange, mask & value.lanes)
        if not value.lanes:
            del unit.values[source]
