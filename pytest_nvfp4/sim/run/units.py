"""The parts that a warp, a CTA and so on each have of the machine's hardware units."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["HasUnits"]

_Unit = TypeVar("_Unit")


class HasUnits:
    """Something that has parts of hardware units, which it knows nothing of: they are made when they are asked for."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units: dict[type, Any] = {}

    def unit(self, kind: type[_Unit]) -> _Unit:
        """Its part of a hardware unit, made on first use by ``kind(self)``."""
        found: _Unit | None = self.units.get(kind)
        if found is None:
            found = self.units[kind] = kind(self)  # type: ignore[call-arg]
        return found
