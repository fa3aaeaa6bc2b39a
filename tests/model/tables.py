"""Tables of published times, and errors against them."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table in ``data``; lines that begin with # say where it comes from."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@dataclass(frozen=True)
class Errors:
    """Relative errors |modelled / published - 1|, in percent."""

    points: int
    median: float
    ninety: float
    worst: float

    @staticmethod
    def of(ratios: Iterable[float]) -> Errors:
        """Return the errors of ratios of modelled to published times."""
        errors = sorted(100 * abs(ratio - 1) for ratio in ratios)
        at = -(-9 * len(errors) // 10) - 1
        return Errors(len(errors), statistics.median(errors), errors[at], errors[-1])
