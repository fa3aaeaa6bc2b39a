"""What the parts of the detector have in common: where an agent's state lies, and footprints of accesses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.agents import BarrierState, WarpAgent
from pytest_nvfp4.sim.races.clocks import ASYNC_SHARED, BEFORE, INITS
from pytest_nvfp4.sim.races.findings import RACE, WARNING
from pytest_nvfp4.sim.races.launch import LANES_A_UNIT, CtaMemory, Doubts, LaunchRaces
from pytest_nvfp4.sim.races.partition import Footprint

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
    from pytest_nvfp4.sim.tcgen05.monitor import TmemBox

__all__ = ["ONE", "Hooks", "box_footprint", "bytes_of", "make", "order_after", "shared_footprint", "units_footprint"]

ONE = np.zeros(1, np.intp)
make = partial(tuple.__new__, Access)
"""An ``Access`` of a tuple of all its fields, in half the time."""


class Hooks(Doubts):
    """A part of the detector.

    Args:
        warnings: Tell also what official kernels leave out.
    """

    def __init__(self, *, warnings: bool = False) -> None:
        super().__init__()
        self.warnings = warnings

    # ---- where things are ----------------------------------------------------------------------------------------

    def _warp(self, w: Warp) -> WarpAgent:
        found: WarpAgent | None = w.units.get(WarpAgent)
        if found is None:
            memory = w.cta.unit(CtaMemory)
            found = w.units[WarpAgent] = WarpAgent(memory.agents, w)
            found.launch, found.memory = memory.launch, memory
        return found

    @staticmethod
    def _memory(cta: Cta) -> CtaMemory:
        return cta.units.get(CtaMemory) or cta.unit(CtaMemory)

    def _use(self, agent: WarpAgent, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """Whoever uses a barrier knows of its initialisation."""
        if state.number in agent.met:
            return
        agent.met.add(state.number)
        ticks = agent.clock.ticks
        if state.init is None or max(ticks[BEFORE, state.init[0]], ticks[INITS, state.init[0]]) >= state.init[1]:
            return
        grid = barrier.cta.launch
        self._launch_of(barrier).reporter.other(
            RACE,
            f"{grid.say(at)} in {agent.who} uses the {barrier.name}, and nothing orders it after the initialisation at "
            f"{grid.say(state.at)} in {state.who}",
            "a barrier of the CTA (or of the cluster, for a peer's) between mbarrier.init and the first use",
            who=agent.who,
            at=at,
            group=("init", state.who.warp if state.who is not None else -1),
            note=f"the same for {grid.say(at)} in {agent.who} and the {barrier.name}",
        )
        order_after(agent, state.init[0])

    def _use_beside(self, agent: WarpAgent, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """The async proxy, or another CTA, uses a barrier."""
        self._use(agent, state, barrier, at)
        if not self.warnings or state.init is None or state.fenced:
            return
        number, tick = state.init
        if agent.clock.ticks[ASYNC_SHARED, number] < tick:
            state.fenced = True
            grid = barrier.cta.launch
            self._launch_of(barrier).reporter.other(
                WARNING,
                f"{grid.say(at)} in {agent.who} uses the {barrier.name} through the async proxy, and no "
                f"fence.mbarrier_init or fence.proxy.async follows its initialisation at {grid.say(state.at)}",
                "cute.arch.mbarrier_init_fence() after the barriers are initialised",
                who=agent.who,
                at=at,
            )

    @staticmethod
    def _launch_of(barrier: Mbarrier) -> LaunchRaces:
        return barrier.cta.launch.unit(LaunchRaces)


def order_after(agent: WarpAgent, number: int) -> None:
    """Count all that another agent has done as ordered: that it is not was told, and consequences are not."""
    earlier = agent.clocks.agents.get(number)
    if earlier is not None:
        agent.acquire(earlier.clock)
        earlier.advance()


def shared_footprint(launch: LaunchRaces, index: int, where: Pattern | int) -> Footprint:
    """Bytes from an index, or of a pattern's items."""
    if isinstance(where, int):
        return launch.shared.footprint((index, where), slice(index, index + where))
    if where.dense:
        return launch.shared.footprint((index, where), slice(index, index + where.span))
    units = np.unique((np.unique(where.offsets)[:, None] + np.arange(where.size)).ravel()) + index
    return launch.shared.footprint((index, where), units)


def units_footprint(launch: LaunchRaces, units: NDArray[np.intp]) -> Footprint:
    """16-byte units of shared memory, by number."""
    key = units.tobytes()
    return launch.shared.find(key) or launch.shared.footprint(key, bytes_of(units.ravel(), 0))


def box_footprint(launch: LaunchRaces, box: TmemBox) -> Footprint:
    """A rectangle of TMEM."""
    column, columns, lane, count = box
    per = 128 // LANES_A_UNIT
    first, last = lane // LANES_A_UNIT, (lane + count - 1) // LANES_A_UNIT + 1
    if last - first == per:
        return launch.tmem.footprint(box, slice(column * per, (column + columns) * per))
    units = (np.arange(column, column + columns)[:, None] * per + np.arange(first, last)).ravel()
    return launch.tmem.footprint(box, units)


def bytes_of(units: NDArray[np.intp], index: int) -> NDArray[np.intp]:
    """The bytes of 16-byte units, counted from an index."""
    return (np.unique(units)[:, None] * 16 + np.arange(16)).ravel() + index
