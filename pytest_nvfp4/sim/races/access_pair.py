"""Pairs of accesses that lack an order, as the checks of the race detector find them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.lane_order import PartialRelease
from pytest_nvfp4.sim.races.names import AgentInfo, WarpId

RACE = "race"
PROXY = "proxy"
WARNING = "race-warning"
PENDING_LD = "pending tcgen05.ld"
"""A wait for a ``tcgen05.ld`` before the arrive that frees its columns, where no use of its registers waits for it."""
COPY_FENCE = "copy-fence"
"""A proxy fence behind ``cp.async``, which the ISA requires and NVIDIA's gathering grouped GEMMs omit."""
ALLOC_FENCE = "alloc-fence"
"""A proxy fence behind ``tcgen05.alloc``, whose result Triton's compiler reads and then overwrites by TMA."""


class Missing(NamedTuple):
    """What two accesses lack, and the instructions that would order them, for messages."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class AccessPair:
    """Two accesses that lack an order.

    Attributes:
        kind: ``RACE``, ``PROXY`` or ``WARNING``.
        place: The memory, for messages.
        old, new: The earlier and the later access of this run.
        old_agent, new_agent: Their agents.
        old_writes, new_writes: Whether each writes.
        foreign: Whether they are of different clusters.
        witness: A warp that has waited for the earlier access, if that is asynchronous.
        missing: The instructions that are missing between them, of a warning and of a pending load.
        partial: The release behind the earlier access that the later one is ordered behind, if only lanes of the warp
            execute it that have not made the access.
        scope: What they lack if only a scope between them is too narrow.
        waited: If the earlier is a copy that completes at an mbarrier, how many phases of it the later one is behind.
    """

    kind: str
    place: str
    old: Access
    new: Access
    old_agent: AgentInfo
    new_agent: AgentInfo
    old_writes: bool
    new_writes: bool
    foreign: bool = False
    witness: WarpId | None = None
    missing: tuple[str, ...] = ()
    partial: PartialRelease | None = None
    scope: Missing | None = None
    waited: int = 0

    @property
    def width(self) -> int:
        """How wide an order the accesses need: 0 for lanes of a warp, 1 within a cluster, 2 beyond it."""
        if not self.old_agent.kind == self.new_agent.kind == "warp":
            return 1
        return 0 if self.old_agent is self.new_agent else 1 + self.foreign
