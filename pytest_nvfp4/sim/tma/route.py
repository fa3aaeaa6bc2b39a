"""Cache of checked tensor loads.

A load in a loop is issued again with the same tensor map, destination and barrier, and other coordinates. The checks
that do not depend on the coordinates pass again unless one of their inputs changed, which is compared: the map's bytes,
the barriers' validity, the mbarriers in the destination's shared memory, copies in flight there, and whether the
target CTAs have exited.
"""

from __future__ import annotations

from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.tma.box_order import BoxOrder
from pytest_nvfp4.sim.tma.tensormap import MapUse
from pytest_nvfp4.sim.tma.tile import TmaTile

Key = tuple[object, int, int, int, int]
"""The form of the instruction, and its operands without the coordinates."""


class Route:
    """A load whose operands were checked.

    Args:
        use: The tensor map's address and bytes.
        tile: Its box.
        order: The order of the box in shared memory at this destination.
        targets: Where the data go.
    """

    def __init__(self, use: MapUse, tile: TmaTile, order: BoxOrder, targets: list[CopyTarget]) -> None:
        self.use = use
        self.tile = tile
        self.order = order
        self.targets = targets
        self._opaque = [cta.shared.opaque.made for cta, _, _ in targets]

    def valid(self, issuer: Cta, *, what: str) -> bool:
        """Return whether the checks would pass again; reports a modified map that was not made visible."""
        if not self.use.unchanged(what=what):
            return False
        for (cta, _, barrier), made in zip(self.targets, self._opaque, strict=True):
            shared = cta.shared
            if not barrier.valid or shared.in_flight or shared.opaque.made != made:
                return False
            if cta is not issuer and cta.exited == len(cta.warps):
                return False
        return True


class Routes(dict[Key, Route]):
    """Checked loads of a CTA: ``cta.unit(Routes)``."""

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)
