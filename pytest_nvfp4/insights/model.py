"""Insights: signals of a layout, with their meaning and a hint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Literal

Method = Literal["canonical", "enumerated", "not provable", "text"]

METHODS: dict[Method, str] = {
    "canonical": "proved from the layout's modes",
    "enumerated": "proved by evaluating every index or lane concerned",
    "not provable": "not provable: it depends on a run-time value",
    "text": "read from the type",
}
"""Meaning of each method. No insight is measured on a device."""


class Level(IntEnum):
    """Severity of a signal."""

    FINE = 0
    NOTE = 1
    LOOK = 2
    WRONG = 3

    @property
    def meaning(self) -> str:
        """Meaning of the level on one line."""
        return {
            Level.FINE: "no cost",
            Level.NOTE: "often intended",
            Level.LOOK: "has a cost, or may have one; look at it",
            Level.WRONG: "cannot be right",
        }[self]


@dataclass(frozen=True, slots=True)
class Insight:
    """One signal of one layout.

    Attributes:
        signal: Name of the property, such as ``bank conflicts``.
        value: Value of the property.
        level: Severity.
        method: Method by which the value is known.
        meaning: Consequence for the hardware.
        look_at: Hint for an improvement; empty if there is none.
    """

    signal: str
    value: str
    level: Level
    method: Method
    meaning: str
    look_at: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the insight as JSON-ready values."""
        return asdict(self) | {"level": self.level.name.lower()}


@dataclass(frozen=True, slots=True)
class Place:
    """Name of a layout, and file and line at which the kernel binds it."""

    name: str
    at: str


@dataclass(frozen=True)
class LayoutInsights:
    """Insights of one layout type, with all names that have it.

    Attributes:
        places: Names of the layout.
        raw: The type.
        canonical: Canonical form of the type.
        roles: Roles of the modes; empty if unknown.
        insights: Insights, worst first.
    """

    places: tuple[Place, ...]
    raw: str
    canonical: str
    roles: tuple[str, ...]
    insights: tuple[Insight, ...]

    @property
    def level(self) -> Level:
        """Worst level of the insights."""
        return max((insight.level for insight in self.insights), default=Level.FINE)

    def to_json(self) -> dict[str, object]:
        """Return the insights as JSON-ready values."""
        return {
            "layouts": [{"name": place.name, "at": place.at} for place in self.places],
            "type": self.raw,
            "canonical": self.canonical,
            "modes": list(self.roles),
            "level": self.level.name.lower(),
            "insights": [insight.to_json() for insight in self.insights],
        }


def worst_first(layouts: Iterable[LayoutInsights]) -> list[LayoutInsights]:
    """Sort by falling level, then by the number of signals of that level, then by name."""

    def key(layout: LayoutInsights) -> tuple[int, int, str]:
        worst = sum(insight.level is layout.level for insight in layout.insights)
        return -layout.level, -worst, layout.places[0].name

    return sorted(layouts, key=key)
