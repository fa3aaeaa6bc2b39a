"""Figures: a name, samples, and what they are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Figure:
    """One thing that was measured.

    Attributes:
        name: What it is, for programs.
        what: What it is, for people.
        unit: Of its samples.
        samples: Each round's measurement.
        baseline: Each round's measurement of what it is compared with, if it is.
        against: What that is.
    """

    name: str
    what: str
    unit: str
    samples: Sequence[float]
    baseline: Sequence[float] = ()
    against: str = ""

    @property
    def value(self) -> float:
        """The median, less the baseline's where there is one.

        Rounds alternate between the two, so that a machine that gets slower on the way slows both.
        """
        return median(self.samples) - (median(self.baseline) if self.baseline else 0.0)

    def text(self) -> str:
        """The figure in a line."""
        number = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.3f}"
        spread = f"{min(self.samples):.4g} .. {max(self.samples):.4g}"
        detail = f"median of {len(self.samples)}, {spread}"
        if self.baseline:
            detail = f"{median(self.samples):.3f} less {median(self.baseline):.3f} for {self.against}; {detail}"
        return f"{self.what:<58} {number:>10} {self.unit:<12} ({detail})"

    def to_json(self) -> dict[str, object]:
        """The figure as JSON-ready values."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "samples": list(self.samples),
            "baseline": list(self.baseline),
            "against": self.against,
        }
