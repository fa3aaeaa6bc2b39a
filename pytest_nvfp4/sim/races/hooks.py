"""Base class of the detector's parts: state of warps and CTAs, initialisation of mbarriers, footprints of accesses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.monitor import Monitor, TmemBox
from pytest_nvfp4.sim.races.access_pair import RACE, WARNING
from pytest_nvfp4.sim.races.agents import BarrierState, CtaMemory, WarpAgent
from pytest_nvfp4.sim.races.launch import LANES_PER_UNIT, LaunchRaces
from pytest_nvfp4.sim.races.partition import Footprint
from pytest_nvfp4.sim.races.ticks import ASYNC_SHARED, BEFORE, INITS
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier

ZERO = np.zeros(1, np.intp)
"""The offsets of one item at 0."""
_BARRIER = (
    "a barrier of the CTA (or of the cluster, for a peer's mbarrier) between mbarrier.init and the first use; before a "
    "relaxed one, <fence.mbarrier_init> in the thread that initialises"
)
_REPEATED = "<initialise an mbarrier once>"


class Hooks(Monitor):
    """A part of the detector.

    Args:
        warnings: Whether to report also instructions that official kernels omit.
    """

    def __init__(self, *, warnings: bool = False) -> None:
        super().__init__()
        self.warnings = warnings

    def stored(self) -> None:
        """Decide the pending findings, after the store."""
        doubts, self.doubts = self.doubts, []
        for decide in doubts:
            decide()

    def _warp(self, w: Warp) -> WarpAgent:
        agent: WarpAgent | None = w.units.get(WarpAgent)
        if agent is None:
            agent = w.units[WarpAgent] = WarpAgent(w.cta.unit(CtaMemory), w)
        return agent

    @staticmethod
    def _memory(cta: Cta) -> CtaMemory:
        return cta.units.get(CtaMemory) or cta.unit(CtaMemory)

    def _use(self, agent: WarpAgent, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """Check that a warp's use of an mbarrier is ordered behind its initialisation.

        PTX ISA, "mbarrier.init": the object is valid for other operations only once the initialisation has been
        performed, so that every use needs a causality order behind it.
        """
        if state.number in agent.initialised:
            return
        agent.initialised.add(state.number)
        ticks = agent.clock.ticks
        init = state.init
        if init is None or max(ticks[BEFORE, init.agent], ticks[INITS, init.agent]) >= init.tick:
            return
        grid = agent.launch.grid
        which, hint = ("repeated initialisation", _REPEATED) if state.repeated else ("initialisation", _BARRIER)
        agent.launch.reporter.other(
            RACE,
            f"{grid.place(at)} in {agent.id} uses the {barrier.name}, and nothing orders it after the {which} "
            f"at {grid.place(state.at)} in {state.warp}",
            hint,
            warp=agent.id,
            at=at,
            group=("init", state.warp.index if state.warp is not None else -1),
            note=f"the same for {grid.place(at)} in {agent.id} and the {barrier.name}",
        )
        _order_after(agent, init.agent)

    def _use_beside(self, agent: WarpAgent, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """Check a use by the async proxy or of another CTA's mbarrier, which needs a fence behind the initialisation.

        PTX ISA, "membar/fence": ``fence.mbarrier_init.release.cluster`` or a proxy fence makes it visible.
        """
        self._use(agent, state, barrier, at)
        init = state.init
        if not self.warnings or init is None or state.fenced:
            return
        if agent.clock.ticks[ASYNC_SHARED, init.agent] < init.tick:
            state.fenced = True
            grid = agent.launch.grid
            agent.launch.reporter.other(
                WARNING,
                f"{grid.place(at)} in {agent.id} uses the {barrier.name} through the async proxy, and no "
                f"fence.mbarrier_init or fence.proxy.async follows its initialisation at {grid.place(state.at)}",
                "<fence.mbarrier_init> after the barriers are initialised",
                warp=agent.id,
                at=at,
            )


def has_started(agent: WarpAgent, cta: Cta) -> bool:
    """Return whether a warp's past contains the start of another CTA of its cluster; True for that CTA from then on.

    PTX ISA, "Cluster of Cooperative Thread Arrays": the CTAs of a cluster are co-scheduled, but only a cluster barrier
    guarantees that they execute. Anything acquired from a warp of the other CTA proves its start; so does a cluster
    barrier that a warp of the own CTA has passed.
    """
    if cta.rank in agent.started:
        return True
    agent.started.add(cta.rank)
    before = agent.clock.ticks[BEFORE]
    peers = (warp.units.get(WarpAgent) for warp in cta.warps)
    if any(peer is not None and before[peer.number] for peer in peers):
        return True
    passed = agent.memory.cluster_ticks.items()
    return any(number == agent.number or before[number] >= tick for number, tick in passed)


def _order_after(agent: WarpAgent, number: int) -> None:
    """Order everything that another agent has done before now: the missing order was reported already."""
    earlier = agent.clocks.agents.get(number)
    if earlier is not None:
        agent.acquire(earlier.clock)
        earlier.advance()


def shared_footprint(launch: LaunchRaces, index: int, where: Pattern | int) -> Footprint:
    """Return the footprint of the bytes from an index, or of a pattern's items."""
    if isinstance(where, int):
        return launch.shared.footprint((index, where), slice(index, index + where))
    if where.dense:
        return launch.shared.footprint((index, where), slice(index, index + where.span))
    units = np.unique((np.unique(where.offsets)[:, None] + np.arange(where.size)).ravel()) + index
    return launch.shared.footprint((index, where), units)


def units_footprint(launch: LaunchRaces, units: NDArray[np.intp]) -> Footprint:
    """Return the footprint of 16-byte units of shared memory, by number."""
    key = units.tobytes()
    return launch.shared.find(key) or launch.shared.footprint(key, bytes_of(units.ravel(), 0))


def box_footprint(launch: LaunchRaces, box: TmemBox) -> Footprint:
    """Return the footprint of a rectangle of TMEM."""
    footprint = launch.tmem.find(box)
    if footprint is not None:
        return footprint
    column, columns, lane, count = box
    per = 128 // LANES_PER_UNIT
    first, last = lane // LANES_PER_UNIT, (lane + count - 1) // LANES_PER_UNIT + 1
    if last - first == per:
        return launch.tmem.footprint(box, slice(column * per, (column + columns) * per))
    units = (np.arange(column, column + columns)[:, None] * per + np.arange(first, last)).ravel()
    return launch.tmem.footprint(box, units)


def bytes_of(units: NDArray[np.intp], index: int) -> NDArray[np.intp]:
    """Return the bytes of 16-byte units, counted from an index."""
    return (np.unique(units)[:, None] * 16 + np.arange(16)).ravel() + index
