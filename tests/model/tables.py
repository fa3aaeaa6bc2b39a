"""Tables of points with times: CSV whose first lines, after ``#``, tell their source; and errors against them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table in ``data``."""
    return read_table(DATA / name)


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table.

    Raises:
        ValueError: The table does not tell its source, or a row is too short or too long.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].startswith("#"):
        raise ValueError(f"{path.name} does not tell its source")
    found = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if any(None in row or None in row.values() for row in found):
        raise ValueError(f"{path.name} has a row that is too short or too long")
    return found


def write_table(path: Path, table: Sequence[dict[str, str]]) -> None:
    """Replace the rows of a table and keep what it tells of its source; a reader sees the old table or the new one."""
    told = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    beside = path.with_suffix(".new")
    beside.write_text("\n".join([*told, text.getvalue()]), encoding="utf-8")
    beside.replace(path)


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
        errors = sorted(100 * abs(float(ratio) - 1) for ratio in ratios)
        at = -(-9 * len(errors) // 10) - 1
        return Errors(len(errors), statistics.median(errors), errors[at], errors[-1])
