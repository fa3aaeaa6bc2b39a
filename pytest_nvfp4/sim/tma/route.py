"""What a tensor load was found to need when it was last issued, for the next time round the loop.

A load in a loop comes again with the same tensor map, destination and barrier, and other coordinates. Its checks that
do not look at the coordinates pass again as long as nothing that they looked at has changed, which is compared: the
map's bytes, the barriers' validity, the mbarriers of the destination's shared memory, copies that are under way there,
whether the CTAs that it goes to still live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.tma.box_order import BoxOrder
from pytest_nvfp4.sim.tma.issue import Target
from pytest_nvfp4.sim.tma.tensormap import MapUse
from pytest_nvfp4.sim.tma.tile import TmaTile

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["Key", "Route", "Routes"]

Key = tuple[object, int, int, int, int]
"""The form of the instruction, and its operands without the coordinates."""


class Route:
    """A load whose operands were checked.

    Args:
        use: The tensor map's place and bytes.
        tile, plan: Its box, and the box's order in shared memory at this destination.
        found: Where the data go.
    """

    __slots__ = ("_opaque", "found", "plan", "tile", "use")

    def __init__(self, use: MapUse, tile: TmaTile, plan: BoxOrder, found: list[Target]) -> None:
        self.use = use
        self.tile = tile
        self.plan = plan
        self.found = found
        self._opaque = [cta.shared.opaque.made for cta, _, _ in found]

    def holds(self, issuer: Cta, *, what: str) -> bool:
        """Whether the checks would pass again. The use of a map that was modified is checked here each time."""
        if not self.use.unchanged(what=what):
            return False
        for (cta, _, barrier), made in zip(self.found, self._opaque, strict=True):
            shared = cta.shared
            if not barrier.valid or shared.in_flight or shared.opaque.made != made:
                return False
            if cta is not issuer and cta.exited == len(cta.warps):
                return False
        return True


class Routes(dict[Key, Route]):
    """``cta.unit(Routes)``: the loads of a CTA."""

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)
