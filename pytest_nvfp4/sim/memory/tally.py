"""Counts of what memory accesses cost by the rules of the hardware: the same on every run, whatever the schedule.

A CTA's unit ``Tally`` counts how often each access happened in each shape; when the CTA ends this becomes counters:

- ``global.load.requests``, ``global.load.bytes`` (different bytes a request), ``global.load.sectors`` (32-byte sectors
  touched, a request at a time) and ``global.load.sectors_least`` (if those bytes lay together); the same for
  ``global.store`` and, without sectors, ``global.atomic`` with ``.lanes``;
- ``shared.load.requests``, ``shared.load.bytes`` (different bytes), ``shared.load.wavefronts`` (passes through the
  banks, see ``Pattern.wavefronts``) and ``shared.load.conflicts`` (passes beyond the fewest); the same for
  ``shared.store``; ``shared.atomic.requests`` and ``.lanes``; accesses to a peer CTA count under ``cluster`` instead
  of ``shared``, as bytes and requests;
- ``local.load.requests``, ``local.store.requests``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.memory.pattern import Pattern

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["Tally"]

Key = tuple[str, int] | tuple[str, Pattern, int]


class Tally(dict[Key, int]):
    """How often: keys are ``(what, bytes)`` of one-address accesses, or ``(what, pattern, lowest address % 128)``.

    ``what`` is ``global.load``, ``shared.store``, ``shared.atomic`` ...
    """

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def at_exit(self) -> None:
        """Turn the counts into the launch's counters."""
        counters = self.cta.launch.counters
        for key, times in self.items():
            what, shape = key[0], key[1]
            counters[f"{what}.requests"] += times
            if isinstance(shape, Pattern):
                low = key[2] if len(key) == 3 else 0
                size = shape.bytes_touched
                sectors, sectors_least = shape.sectors(low), shape.least_sectors
                lanes = len(shape.active)
                passes = shape.wavefronts(low) if what.startswith("shared") else (1, 1)
            else:
                size, lanes = shape, 1
                sectors = sectors_least = -(-size // 32)
                passes = (1, 1)
            if what.endswith("atomic"):
                counters[f"{what}.lanes"] += times * lanes
                continue
            counters[f"{what}.bytes"] += times * size
            if what.startswith("global"):
                counters[f"{what}.sectors"] += times * sectors
                counters[f"{what}.sectors_least"] += times * sectors_least
            elif what.startswith("shared"):
                counters[f"{what}.wavefronts"] += times * passes[0]
                counters[f"{what}.conflicts"] += times * (passes[0] - passes[1])
        self.clear()
