"""Accesses to a CTA by the rest of its cluster that are not ordered before its end.

PTX ISA, "Cluster of Cooperative Thread Arrays" and ``mapa``: shared memory, and the mbarriers in it, exist as long as
the CTA. A peer's access, an arrive (also by a multicast commit of the tensor core), and the reads and writes of an MMA
of a CTA pair in the other CTA must be ordered before the end of the CTA that they target: by a wait of one of its
threads (the reason why the tail of a producer waits for every stage), or by a cluster barrier at the end. So must the
read of a CTA's own memory by a bulk copy to a peer, which completes at the peer's mbarrier. (A multicast copy completes
at each target's mbarrier: ``sync.mbarrier`` reports a CTA that ends without a wait for it.)

A relaxed arrive or wait, which orders no memory, is enough: a thread that saw a barrier's phase complete has observed
that the arrive was performed, and the end of a CTA requires no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import RACE
from pytest_nvfp4.sim.races.clocks import Clock, Clocks
from pytest_nvfp4.sim.races.findings import Reporter
from pytest_nvfp4.sim.races.ticks import BEFORE
from pytest_nvfp4.sim.run.cta import Cta


class PeerAccesses:
    """Accesses to one CTA by the rest of its cluster.

    Args:
        clocks: Clocks of the cluster.

    Attributes:
        last: Each agent's last access; that of a warp may be of a set of its lanes (``lane_order``).
        performed: Everything that waits of the CTA's threads observed as performed, without memory order.
    """

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.last: dict[int, Access] = {}
        self.performed: Clock | None = None

    def observe(self, clock: Clock | None) -> None:
        """Record that a thread of the CTA observed everything in ``clock`` as performed."""
        if clock is not None:
            if self.performed is None:
                self.performed = self.clocks.clock()
            self.performed.join(clock)

    def check(self, cta: Cta, reporter: Reporter, warps: Iterable[int]) -> None:
        """Report accesses that none of the ending CTA's warps (by agent number) has observed."""
        agents = self.clocks.agents
        observed = [agents[number].clock.ticks[BEFORE] for number in warps]
        if self.performed is not None:
            observed.append(self.performed.ticks[BEFORE])
        for number, access in self.last.items():
            # A race that was reported of the access counts as an order of its set of lanes, which has a column.
            if any(max(ticks[number], ticks[access.agent]) >= access.tick for ticks in observed):
                continue
            reporter.other(
                RACE,
                f"CTA {cta.index} (rank {cta.rank} of its cluster) may end before {reporter.grid.place(access.at)} in "
                f"{access.warp} has used its shared memory: no wait of its threads is ordered after that use",
                "before the CTA ends, wait for the barrier that this arrives at, <in every stage>, or execute "
                "barrier.cluster.arrive and .wait, a <barrier.cluster>, last in all CTAs",
                warp=access.warp,
                at=access.at,
            )
