"""Bands of modelled times: how far they were from measured times of kernels of the same kind, on the same device.

The figures are data (``bands.toml``), one table for each set of measured times. The test that a table names recomputes
its figures from the stored times and fails if they are worse than the table says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_FIELDS = ("device", "kind", "points", "shortest_us", "median", "p90", "worst", "conditions", "times", "test")


@dataclass(frozen=True, slots=True)
class Band:
    """Errors of modelled times against one set of measured ones.

    Attributes:
        device: Name of the device's table, such as ``b200``.
        kind: Kind of the kernels (`scope.kind_of`).
        points: Number of measured times that no constant was fitted to.
        shortest_us: The shortest of these times.
        median, p90, worst: Size of the error that half of them, 90 % of them and all of them stay within, as a share.
        conditions: Conditions of the modelled times, in words (`device.modelled.conditions_text`).
        times: What was measured, and by whom.
        test: The test that recomputes these figures.
    """

    device: str
    kind: str
    points: int
    shortest_us: float
    median: float
    p90: float
    worst: float
    conditions: str
    times: str
    test: str

    def __post_init__(self) -> None:
        named = self.device and self.kind and self.conditions and self.times and self.test
        if not (named and self.points > 0 and self.shortest_us > 0):
            raise ValueError(f"a band names its device, kind, conditions, times, test and number of points: {self}")
        if not 0 < self.median <= self.p90 <= self.worst or self.p90 >= 1:
            raise ValueError(f"the errors of a band grow from median to worst, and 90 % stay below 1: {self}")

    def around(self, time: float) -> tuple[float, float]:
        """Return the range in which 90 % of such kernels' measured times lie, for a modelled time.

        An error is that of the modelled time, as a share of the measured one.
        """
        return time / (1 + self.p90), time / (1 - self.p90)


@cache
def bands() -> tuple[Band, ...]:
    """Return all bands. Raises ValueError if the data are damaged."""
    data = tomllib.loads(files(__package__).joinpath("bands.toml").read_text("utf-8"))
    try:
        return tuple(Band(**{name: table[name] for name in _FIELDS}) for table in data.get("band", ()))
    except KeyError as error:
        raise ValueError(f"bands.toml: a band has no {error}") from error


def bands_of(device: str, kind: str) -> list[Band]:
    """Return the bands of a kind of kernels on a device."""
    return [band for band in bands() if (band.device, band.kind) == (device, kind)]


def widest(known: Sequence[Band], us: float) -> Band | None:
    """Return the widest of some bands for a modelled time; None if it is shorter than all that were measured."""
    fitting = [band for band in known if band.around(us)[1] >= band.shortest_us]
    return max(fitting, key=lambda band: band.p90, default=None)
