"""One access to memory, as a shadow remembers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.tensor_order import TensorUse
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["ASYNC", "STRONG", "Access", "Who"]

ASYNC = 1
"""Made through the async proxy (bulk copies, TMA, ``tcgen05`` and ``wgmma`` operands)."""
STRONG = 2
"""An atomic, or a load or store with an order (``.volatile``, ``.relaxed`` and up): two of them never race."""


class Who:
    """A warp as messages name it. It does not keep the CTA and its memory alive."""

    __slots__ = ("cluster", "cta", "rank", "size", "warp")

    def __init__(self, w: Warp, cluster: int) -> None:
        self.cta = w.cta.index
        self.rank = w.cta.rank
        self.size = len(w.cta.cluster.ctas)
        self.warp = w.index
        self.cluster = cluster

    def __str__(self) -> str:
        rank = f" (rank {self.rank})" if self.size > 1 else ""
        return f"warp {self.warp} of CTA {self.cta}{rank}"


class Access(NamedTuple):
    """Who touched memory, when, and by which instruction.

    Attributes:
        agent, tick: The epoch: it happened before everything whose clock holds the tick.
        flags: ``ASYNC``, ``STRONG``.
        at: Index of the instruction.
        who: The warp that executed it, with the number of its cluster.
        detail: What else is known of it: the box of a tensor copy.
        use: Of tensor memory, for the judgement of fences and waits (``tensor_order``), where those are wanted.
    """

    agent: int
    tick: int
    flags: int
    at: int
    who: Who
    detail: Any = None
    use: TensorUse | None = None
