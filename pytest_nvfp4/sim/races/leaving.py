"""CTAs that end while others of their cluster may still use what is theirs.

PTX ISA, "Cluster of Cooperative Thread Arrays" and ``mapa``: shared memory, and the mbarriers in it, last as long as
the CTA. A peer's access, an arrive (also the tensor core's, by a multicast commit), and what an MMA of a pair of CTAs
reads and writes in the other one must be ordered before the end of the CTA that they go to: by a wait of one of its
threads (the tail of a producer waits for every stage for no other reason), or by a barrier of the cluster at the end.

A relaxed arrive or wait, which orders no memory, is enough: whoever saw the phase of a barrier complete knows that the
arrive has been performed, and for the end of a CTA that is what matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.clocks import BEFORE, Clock, Clocks
from pytest_nvfp4.sim.races.findings import RACE

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.launch import LaunchRaces
    from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["Visits"]


class Visits:
    """What others of the cluster do in a CTA.

    Args:
        clocks: Of the cluster.

    Attributes:
        last: By agent, its last access.
        loose: What waits of the CTA's threads saw performed, without an order of memory; None for nothing.
    """

    __slots__ = ("clocks", "last", "loose")

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.last: dict[int, Access] = {}
        self.loose: Clock | None = None

    def performed(self, clock: Clock | None) -> None:
        """A thread of the CTA saw that what ``clock`` knows has been performed."""
        if clock is not None:
            if self.loose is None:
                self.loose = self.clocks.clock()
            self.loose.join(clock)

    def check(self, cta: Cta, launch: LaunchRaces, numbers: list[int]) -> None:
        """The CTA, whose warps have these numbers, ends: tell of what its threads do not know."""
        if not self.last:
            return
        agents = self.clocks.agents
        known = [agents[number].clock.ticks[BEFORE] for number in numbers]
        if self.loose is not None:
            known.append(self.loose.ticks[BEFORE])
        for number, access in self.last.items():
            if not any(ticks[number] >= access.tick for ticks in known):
                self._tell(cta, launch, access)

    @staticmethod
    def _tell(cta: Cta, launch: LaunchRaces, access: Access) -> None:
        launch.reporter.other(
            RACE,
            f"CTA {cta.index} (rank {cta.rank} of its cluster) may end before {launch.grid.say(access.at)} in "
            f"{access.who} has used its shared memory: nothing that one of its threads waits for comes after that",
            "before the CTA ends, a wait for the barrier that this arrives at, in every stage (pipeline.producer_tail, "
            "PipelineProducer.tail), or barrier.cluster.arrive and barrier.cluster.wait as the last of all CTAs "
            "(cute.arch.cluster_arrive, cluster_wait)",
            who=access.who,
            at=access.at,
        )
