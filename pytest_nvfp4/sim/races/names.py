"""Identities of warps and agents, as messages print them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pytest_nvfp4.sim.run.warp import Warp

AgentKind = Literal[
    "warp", "mbarrier", "pipe", "bulk-read", "bulk-write", "map-read", "map-load", "cp.async", "wgmma",
    "tmem-store", "tmem-load", "grid", "barrier",
]  # fmt: skip


class WarpId:
    """The identity of a warp. Unlike the warp, it does not keep the CTA and its memory alive.

    Attributes:
        cta, rank: Index of the CTA in the grid, and its rank in the cluster.
        cluster, cluster_size: Number of the cluster in the grid, and its number of CTAs.
        index: Index of the warp in the CTA.
    """

    __slots__ = ("cluster", "cluster_size", "cta", "index", "rank")

    def __init__(self, w: Warp, cluster: int) -> None:
        self.cta = w.cta.index
        self.rank = w.cta.rank
        self.cluster_size = len(w.cta.cluster.ctas)
        self.index = w.index
        self.cluster = cluster

    def __str__(self) -> str:
        return f"warp {self.index} {self._place}"

    @property
    def warpgroup(self) -> str:
        """The warpgroup of the warp, as text."""
        return f"warpgroup {self.index // 4} {self._place}"

    @property
    def _place(self) -> str:
        rank = f" (rank {self.rank})" if self.cluster_size > 1 else ""
        return f"of CTA {self.cta}{rank}"


class AgentInfo(NamedTuple):
    """Description of an agent.

    Attributes:
        kind: ``warp``; ``mbarrier`` (the copies that complete at it); ``pipe`` (a tcgen05 pipe); ``bulk-read`` and
            ``bulk-write`` (the bulk groups of a thread); ``map-read`` and ``map-load`` (reads of tensor maps by a
            warp's stores and loads); ``cp.async``; ``wgmma``; ``tmem-store`` and ``tmem-load`` (of a warp); ``grid``
            (the previous launch); ``barrier`` (the rounds of a named barrier or the cluster barrier).
        name: Name in messages.
        warp: The warp that issues the agent's work, if there is exactly one.
    """

    kind: AgentKind
    name: str
    warp: WarpId | None = None
