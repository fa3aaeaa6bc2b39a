"""What an insight is: one signal of one layout, what it means, and what to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

Method = Literal["canonical", "enumerated", "not provable", "text"]

METHODS: dict[Method, str] = {
    "canonical": "proved from the layout's modes",
    "enumerated": "proved by looking at every index or lane concerned",
    "not provable": "not provable: it depends on a run-time value",
    "text": "read from the type",
}
"""What each method claims. Nothing here is measured on a device."""


class Level(IntEnum):
    """How much a signal deserves a look."""

    FINE = 0
    NOTE = 1
    LOOK = 2
    WRONG = 3

    @property
    def meaning(self) -> str:
        """One line that says what the level claims."""
        return {
            Level.FINE: "as good as it gets",
            Level.NOTE: "worth knowing; often meant so",
            Level.LOOK: "costs something, or may; look at it",
            Level.WRONG: "cannot be right",
        }[self]


@dataclass(frozen=True, slots=True)
class Insight:
    """One signal of one layout.

    Attributes:
        signal: What was looked at, such as ``bank conflicts``.
        value: What was found.
        level: How much it deserves a look.
        method: How it is known.
        meaning: What it means for the hardware.
        look_at: What to do about it; empty where nothing is to be done.
    """

    signal: str
    value: str
    level: Level
    method: Method
    meaning: str
    look_at: str = ""

    def to_json(self) -> dict[str, str]:
        """The insight as JSON-ready values."""
        return {
            "signal": self.signal,
            "value": self.value,
            "level": self.level.name.lower(),
            "method": self.method,
            "meaning": self.meaning,
            "look_at": self.look_at,
        }


@dataclass(frozen=True, slots=True)
class Place:
    """A layout by its name, and where the kernel binds it."""

    name: str
    at: str


@dataclass(frozen=True)
class LayoutInsights:
    """Insights of one layout type, under all names that have it.

    Attributes:
        places: Where it is.
        raw: The type.
        canonical: Its canonical form.
        roles: What its modes stand for; empty where no rule knows.
        insights: Worst first.
    """

    places: tuple[Place, ...]
    raw: str
    canonical: str
    roles: tuple[str, ...]
    insights: tuple[Insight, ...]

    @property
    def level(self) -> Level:
        """The worst level."""
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


def worst_first(findings: Iterable[LayoutInsights]) -> list[LayoutInsights]:
    """The findings by falling level, then by how many signals reach it, then by name."""
    return sorted(
        findings,
        key=lambda one: (
            -one.level,
            -sum(insight.level is one.level for insight in one.insights),
            one.places[0].name,
        ),
    )
