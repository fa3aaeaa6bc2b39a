"""Per-object state of hardware units."""

from __future__ import annotations

from typing import Any, TypeVar

_Unit = TypeVar("_Unit")


class HasUnits:
    """Base of warps, CTAs, clusters, grids and machines, which hold the state of hardware units by class.

    A unit may have hooks, methods that are called at an event: ``at_exit()`` when its CTA or grid has ended,
    ``settle()`` of a grid's unit when the clusters that have been selected have ended without a fault,
    ``warp_exited(warp)`` and ``lanes_exited(warp)`` of a CTA's unit, and ``dissolve()`` when its cluster is discarded.
    """

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units: dict[type, Any] = {}

    def unit(self, kind: type[_Unit]) -> _Unit:
        """Return the unit of a class, created on first use by ``kind(self)``."""
        unit: _Unit | None = self.units.get(kind)
        if unit is None:
            unit = self.units[kind] = kind(self)  # type: ignore[call-arg]
        return unit

    def call_units(self, hook: str, *arguments: Any) -> dict[type, Any]:
        """Call a hook of every unit that has it, and return the results by class."""
        hooks = {kind: getattr(unit, hook, None) for kind, unit in self.units.items()}
        return {kind: method(*arguments) for kind, method in hooks.items() if method is not None}
